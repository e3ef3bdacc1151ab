"""Small tokenizers that behave as the large ones do, and the main families' templates."""

from __future__ import annotations

from functools import cache
from typing import Any

SPECIAL = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "[INST]",
    "[/INST]",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|User|>",
    "<|Assistant|>",
    "<|end_of_sentence|>",
]
CORPUS = [
    "You are a helpful planner. Answer in short sentences, never in verse.\n\n",
    "Question: What moves the price of gold? Answering takes an answerable question.\n",
    "Tools: search(query), calculator(expression). Dates: 2024-07-26, 12:30:05.\n\n\n",
    'JSON: {"name": "search", "arguments": {"query": "price"}}\n',
    "thinking thoughtful thoughts through thoroughly; exam example examples\n",
    "国内生产总值和黄金价格。你是一个有用的助手。请回答问题。\n",
    "Don't they're we've I'll it's (parenthesis) [bracket] #tag @user $100\n",
] * 4


@cache
def byte_level(vocabulary: int = 900) -> Any:
    """Byte-level BPE with a splitting expression like GPT-4's (Llama 3, Qwen)."""
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )

    split = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _fast(tokenizer)


@cache
def sentencepiece(vocabulary: int = 900) -> Any:
    """BPE over the whole text with a prefix space and byte fallback (Llama 2, Gemma)."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=None, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    # As SentencePiece does, a piece does not run across a space.
    words = [
        part
        for line in CORPUS
        for word in line.replace("\n", " \n ").split(" ")
        for part in (f"▁{word}",)
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[*SPECIAL, *pieces], show_progress=False
    )
    tokenizer.normalizer, kept = None, tokenizer.normalizer
    tokenizer.train_from_iterator(words, trainer)
    tokenizer.normalizer = kept
    return _fast(tokenizer)


@cache
def with_added_tokens() -> Any:
    """Byte-level BPE with tokens added after training: they are found before any split,
    so one may swallow both sides of a mark."""
    import copy

    tokenizer = copy.deepcopy(byte_level())
    tokenizer.add_tokens(["<tool_call>", "Question: What"])
    return tokenizer


def _fast(tokenizer: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    )


LLAMA_3 = """{{- '<|begin_of_text|>' }}
{%- set date_string = date_string or '26 Jul 2024' %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools %}{{- 'Environment: ipython\\n' }}{%- endif %}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' + date_string + '\\n\\n' }}
{{- system + '<|eot_id|>' }}
{%- if tools %}
    {%- set first = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nGiven the functions:\\n\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{{- '\\n\\n' }}{%- endfor %}
    {{- first + '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

QWEN_3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content }}
    {%- if tools %}{{- '\\n\\n# Tools\\n\\n<tools>' }}
        {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
        {{- '\\n</tools>' }}
    {%- endif %}{{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if loop.index0 < ns.last and '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role != 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

MISTRAL = """{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- set loop_messages = messages %}{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and system %}
            {{- '[INST] ' + system + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}
    {%- else %}{{- ' ' + message['content'] + eos_token }}{%- endif %}
{%- endfor %}"""

GEMMA = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set prefix = messages[0]['content'] + '\\n\\n' %}{%- set rest = messages[1:] %}
{%- else %}{%- set prefix = '' %}{%- set rest = messages %}{%- endif %}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\\n' + (prefix if loop.first else '') }}
    {{- message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""

DEEPSEEK = """{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{{- message['content'] }}
    {%- elif message['role'] == 'user' %}{{- '<|User|>' + message['content'] }}
    {%- else %}
        {%- set content = message['content'] %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1] %}
        {%- endif %}
        {{- '<|Assistant|>' + content + '<|end_of_sentence|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|>' }}{%- endif %}"""

TEMPLATES = {
    "llama-3": LLAMA_3,
    "qwen-3": QWEN_3,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "deepseek": DEEPSEEK,
}
TOKENIZERS = {
    "byte-level": byte_level,
    "sentencepiece": sentencepiece,
    "added": with_added_tokens,
}
