"""Where SGLang meets the policy."""
