"""Chat templates written for the tests, one for each habit found in the wild. {% generation %} appears in none."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parents[2] / "data"
CHATML = (DATA / "k04_tpl_no_generation_mark.jinja").read_text(encoding="utf-8")
REWRITES_HISTORY = (DATA / "k04_tpl_rewrites_history.jinja").read_text(encoding="utf-8")
WITH_BOS = (DATA / "k04_tpl_with_bos.jinja").read_text(encoding="utf-8")

# No system turn, strict alternation, no generation prompt, answers begin with a space and end in the end token.
INSTRUCT = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'].strip() + eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)

# Splits reasoning off the content, keeps it in the last turn only, and writes an empty think block where there is none.
THINKS = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{% set content = m['content'] %}{% set thought = m['reasoning_content'] or '' %}"
    "{% if '</think>' in content %}{% set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>assistant\n' }}"
    "{% if loop.index0 > ns.last %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}"
    "{{ content }}{% if m['tool_calls'] %}{% for call in m['tool_calls'] %}"
    "{{ '<tool_call>' + (call['function'] | tojson) + '</tool_call>' }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# The generation prompt opens a think block that earlier turns do not have.
OPENS_THINK = THINKS.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")

# Nothing closes an answer: headings only.
NO_END = (
    "{% for m in messages %}{{ '### ' + m['role'] + '\n' + m['content'] + '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### assistant\n' }}{% endif %}"
)

# Tool outputs are written into the assistant's own turn; arguments must be text.
TOOLS_INSIDE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'user' %}{{ '<|im_start|>user\n' + m['content'] + '<|im_end|>\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{% if m['content'] is not none %}{{ m['content'] }}{% endif %}"
    "{% for call in m['tool_calls'] or [] %}"
    "{{ '<call>' + call['function']['name'] + ' ' + call['function']['arguments'] + '</call>' }}{% endfor %}"
    "{% if m['tool_calls'] %}{% for other in messages %}"
    "{% if other['role'] == 'tool' %}{{ '<out>' + other['content'] + '</out>' }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
