"""agentUniverse's own OpenAI LLM, without the download that its tokenizer makes."""

from __future__ import annotations

from agentuniverse.llm.openai_style_llm import OpenAIStyleLLM


class StageLLM(OpenAIStyleLLM):
    def get_num_tokens(self, text: str) -> int:
        return len(text) // 4
