"""KVFlow inside SGLang: the plugin, the emulated accelerator, the command line."""
