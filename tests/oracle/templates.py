"""Chat templates: what transformers' apply_chat_template makes of conversations, and what eps makes of them.

    templates.py fixtures              writes tests/fixtures/templates.json, for tests/client/text/test_template.c
    templates.py compare PATH...       compares build/bin/test_template with transformers on templates that exist: files
                                       *.jinja, model directories, or folders of them; prints how many texts are equal
    templates.py draw [N]              compares them on N (1000) drawn templates and conversations: numbers in calls and
                                       tools, and expressions of the filters, tests, methods and statements that eps knows

The templates in the fixtures are ours. They have the formats and use the constructs of those that Qwen 2.5 and 3, Llama
2, 3 and 3.1, Mistral v1 and v3, and Gemma 1 and 3 have published; `pip download trl` has most of the published ones, for
compare. Made with transformers 5.23.0 and jinja2 3.1.6.
"""

import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

from transformers.utils import chat_template_utils

import fixture

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "tests" / "fixtures" / "templates.json"
NOW = datetime.datetime(2027, 1, 2, 3, 4, 5)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

CHATML = """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a careful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n' + message.content }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# The last question is the last message of the user; what was thought before it is left out.
THINKING = """\
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning is string %}
            {%- set thought = message.reasoning %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or (not loop.last and thought)) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<call>' ~ call.name ~ ' ' ~ (call.arguments if call.arguments is string else call.arguments | tojson) ~ '</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set rest = messages %}{% set system = false %}{% endif %}"
    "{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Turns of user and assistant must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system != false %}"
    "{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}"
    "{% endfor %}")

LLAMA3 = (
    "{% set rest = messages %}{% for message in rest %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")

LLAMA31 = """\
{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_first is defined %}
    {%- set tools_first = true %}
{%- endif %}
{%- if not today is defined %}
    {%- if strftime_now is defined_or_not %}{%- endif %}
    {%- set today = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message stands alone, so that it can be put in front. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: shell\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Knowledge until: " + "March 2026" + "\\n" }}
{{- "Today: " + today + "\\n\\n" }}
{{- system }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'shell' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", ' }}
        {%- for name, value in call.arguments | items %}
            {{- name + '="' ~ value ~ '"' }}
            {%- if not loop.last %}{{- ", " }}{%- endif %}
        {%- endfor %}
        {{- call.arguments | tojson }}
    {%- elif message.role == "tool" or message.role == "shell" %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""".replace("    {%- if strftime_now is defined_or_not %}{%- endif %}\n", "")

MISTRAL1 = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Turns of user and assistant must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
    "{% else %}{{ raise_exception('There are users and assistants only') }}{% endif %}{% endfor %}")

MISTRAL3 = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system = messages[0]["content"] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set users = rest | selectattr("role", "equalto", "user") | list %}

{#- Turns must alternate, calls aside. #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in rest %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the system message, turns must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in rest %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == users[-1]) %}
            {{- "[TOOLS] [" }}
            {%- for tool in tools %}
                {{- tool | tojson }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system is defined %}
            {{- "[INST] " + system + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[RESULT] {"content": ' + content|string + ", " }}
        {%- if not message.id is defined or message.id|length != 9 %}
            {{- raise_exception("A call's id has 9 characters") }}
        {%- endif %}
        {{- '"id": "' + message.id + '"}[/RESULT]' }}
    {%- else %}
        {{- raise_exception("There are users and assistants only, and one system message") }}
    {%- endif %}
{%- endfor %}
"""

GEMMA1 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system messages') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Turns of user and assistant must alternate') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}")

GEMMA3 = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Turns of user and assistant must alternate") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Contents are texts or lists") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""

FAMILIES = {"chatml": CHATML, "thinking": THINKING, "llama2": LLAMA2, "llama3": LLAMA3, "llama3.1": LLAMA31,
            "mistral1": MISTRAL1, "mistral3": MISTRAL3, "gemma1": GEMMA1, "gemma3": GEMMA3}

# What the templates above do not reach: white space, values, filters and tests, scopes.
CONSTRUCTS = [
    "a\n  {% if true %}\n  b\n  {% endif %}\n c\n", "{% if true %}x{% endif %}\n\ny", "  {%+ if true %} x {%- endif +%}\n z",
    "a{% if true %}b{% endif %}\n\n", "{{ '\\x4A\\u00E9\\uFFFD' }}", "{{ {} is sequence }}{{ namespace(a=1) is sequence }}",
    "a {{- ' b ' -}} \n\t c", "a {# no #} b\n  {# line #}\nc {#- x -#} d\n", "\r\na\r\n{% if 1 %}\r\nb{% endif %}\r",
    "a\u3000{{- 1 -}}\u2003b\u00a0", "{{ '}}' }}{{ \"%}\" }}{{ {'a': {'b': 1}}['a']['b'] }}", "{{ 'a' 'b' \"c\" }}{{ 'it\\'s \\x41\\u00e9\\t\\q' }}",
    "{{ 1 + 2 * 3 - 4 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 - -3 }} {{ 1_000 }} {{ (1 + 2) * 3 }}",
    "{{ 9223372036854775806 % 9223372036854775807 }} {{ -1 % 9223372036854775807 }} {{ 1 % -9223372036854775807 }}",
    "{% set n = -9223372036854775807 - 1 %}{{ n // 2 }} {{ n // 3 }} {{ n % 3 }} {{ n % -1 }} {{ n // n }} {{ [1, 2][n:] | length }}"
    "{{ 'abc'[::n] }} {{ -9 % 3 }} {{ -9 // 3 }} {{ 3 % n }}",
    "{{ 2 ~ 3 ~ 'x' }}{{ strftime_now is defined and namespace is not none }}", "{{ true }} {{ none }} {{ false or 'x' }} {{ 1 and 0 }} {{ nothing }}|",
    "{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 'a' < 'b' }} {{ 'a' in 'cat' }} {{ 'x' not in 'cat' }} {{ 2 in [1, 2] }} {{ 'k' in {'k': 0} }}",
    "{{ not 1 == 2 }} {{ not not 'x' }} {{ 1 == true }} {{ '1' == 1 }} {{ [1, [2]] == [1, [2]] }} {{ nothing == none }}",
    "{{ 'a' if false }}|{{ 'a' if 0 else 'b' if 0 else 'c' }}|{{ ('a' if 1 else 'b') ~ 'c' }}",
    "{{ 'aéx😀'[1] }}{{ 'aéx😀'[-1] }}{{ 'aéx😀'[1:3] }}{{ 'abc'[::-1] }}{{ 'abc'[5:] }}{{ 'abcdef'[-2:0:-2] }}{{ 'abc'[:-1] }}",
    "{% for c in 'éa' %}{{ c }}.{% endfor %}{% for k in {'x': 1, 'y': 2} %}{{ k }}{% endfor %}{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}",
    "{% for x in [1, 2, 3, 4] if x % 2 == 0 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% else %}none{% endfor %}",
    "{% for x in [] %}{{ x }}{% else %}none{% endfor %}{% for x in nothing %}y{% endfor %}",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}",
    "{% for x in [[1, 2], [3, 4]] %}{% for y in x %}{{ loop.revindex0 }}{{ y }}{% endfor %}{{ loop.revindex }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}",
    "{% set ns = namespace(a=1, b='x') %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}",
    "{% set x %}a{{ 1 }}\n b{% endset %}[{{ x }}]{{ x | length }}", "{% set a, b = [1, 2] %}{{ a }}{{ b }}{% set t = (1, 2) %}{{ t[1] }}",
    "{% macro m(a, b='y', c=none) %}<{{ a }}{{ b }}{{ c is none }}>{% endmacro %}{{ m(1) }}{{ m(1, c=2) }}{{ m('a', 'b') | upper }}",
    "{% set g = 'G' %}{% macro m(n) %}{{ g }}{{ n }}{{ m(n - 1) if n > 0 }}{% endmacro %}{% for i in [2] %}{% set h = 1 %}{{ m(i) }}{% endfor %}",
    "{{ '  a b ' | trim }}|{{ 'xxaxx'.strip('x') }}|{{ 'xya'.lstrip('yx') }}|{{ 'a\\n'.rstrip('\\n') }}|{{ '\u3000é\u00a0' | trim }}",
    "{{ 'a,b,,c'.split(',') | join('-') }} {{ ' a  b c '.split() | join('-') }} {{ 'a b c'.split(' ', 1)[1] }} {{ 'a  b c '.split(none, 1) | join('-') }}",
    "{{ 'abab'.replace('b', 'c') }}{{ 'abab'.replace('b', 'c', 1) }}{{ 'abab' | replace('a', '') }}{{ 'x'.join(['a', 'b']) }}{{ 'aéb'.find('b') }}",
    "{{ 'Ab cD' | upper }}{{ 'Ab cD'.lower() }}{{ 'ab CD'.title() }}{{ 'ab CD' | capitalize }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('bc') }}",
    "{{ ['a', 'é'] | length }}{{ 'aé' | count }}{{ [3, 1] | first }}{{ [3, 1] | last }}{{ [1, 2] | reverse | list | join }}{{ '12' | int + 1 }}",
    "{{ nothing | default('d') }}{{ '' | default('d', true) }}{{ '' | d('e') }}{{ none | default('x') }}{{ 5 | string + 'x' }}",
    "{{ [{'r': 'u', 'c': 1}, {'r': 'a', 'c': 2}] | selectattr('r', 'equalto', 'u') | map(attribute='c') | join(',') }}{{ [0, 1, ''] | select | list | length }}{{ [' a '] | map('trim') | first }}{{ [{'x': 1}, {}] | rejectattr('x', 'defined') | list | length }}",
    "{{ {'a': [1, 'é\\n\\x07\\\\', none, true, {}], 'b': []} | tojson }}{{ [1, {'a': [2]}, []] | tojson(indent=2) }}{{ 'a\"b' | tojson }}{{ 1 | tojson }}",
    "{{ 'a' is string }}{{ 1 is string }}{{ {} is mapping }}{{ [] is iterable }}{{ 'a' is sequence }}{{ nothing is iterable }}{{ 1 is number }}{{ true is boolean }}{{ true is integer }}{{ none is none }}{{ x is not defined }}{{ 3 is odd }}{{ 1 is eq 1 }}{{ 1 is in [1] }}",
    "{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 2) }}{{ {'b': 1, 'a': 2}.keys() | list | join }}{{ {'b': 1}.values() | first }}{{ dict(a=1)['a'] }}",
    "{{ strftime_now('%Y-%m-%d %H:%M %A %b') }}", "{% generation %}{{ 'x' }}{% endgeneration %}\ny", "{{ messages[0].content[0:2] }}{{ messages[-1]['role'] }}{{ messages[9] is defined }}",
    "{{ (1, 2) | length }}{{ [] ~ '' if false else '' }}{{ [1] + [2] == [1, 2] }}{{ 'a'.missing is defined }}{{ none.x is defined }}{{ 5 is divisibleby_not if false else 1 }}".replace("{{ 5 is divisibleby_not if false else 1 }}", ""),
    # numbers
    "{{ 1.5 }} {{ 2.0 }} {{ 1e3 }} {{ 1.5E-7 }} {{ 1e16 }} {{ 1_0.2_5 }} {{ 0.1 + 0.2 }} {{ 1e400 }} {{ -1.0 }} {{ 12345678901234567890 }}",
    "{{ 7 / 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 7 % -2.5 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 2.0 ** 0.5 }} {{ 1e308 * 10 }} {{ 0 * 1.5 }} {{ -0.0 }}",
    "{{ 1 == 1.0 }} {{ 1.5 < 2 }} {{ 2.5 > 2 }} {{ 1.0 in [1] }} {{ 1.5 is number }} {{ 1.5 is float }} {{ 1 is float }} {{ 1.5 is integer }} {{ 1.0 | int }} {{ 3.99 | int }} {{ '2.7' | int }} {{ 'x' | int(5) }}",
    "{{ '3' | float }} {{ 'x' | float }} {{ 'x' | float(1.5) }} {{ 2 | float }} {{ -3 | abs }} {{ (-3.5) | abs }} {{ 2.675 | round(2) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 42.55 | round(1, 'floor') }} {{ 42.51 | round(method='ceil') }} {{ 5 | round }}",
    "{{ 1.5 ~ 'x' ~ 1e-7 }} {{ 1.0 | string }} {{ 1.5 or 2 }} {{ 0.0 or 2 }} {{ [1.5, 2] | join(',') }} {{ ' 1_000 ' | int }} {{ '-5' | int }} {{ true + 1.5 }}",
    "{{ {'a': 19.99, 'b': [1e-07, 1e22, 1e16, 0.1, -0.0, 100.0, 5e-324]} | tojson }}{{ {'a': 19.99, 'b': [1e-07]} | tojson(indent=2) }}{{ [1.5] | tojson(indent=0) }}{{ [1, {'a': 2}] | tojson(indent='--') }}",
    "{{ {'b': 'é\\u2028', 'a': 1} | tojson(ensure_ascii=true, sort_keys=true) }}{{ {'b': 1, 'a': [1, 2]} | tojson(separators=(',', ':')) }}{{ [] | tojson(indent=2) }}{{ 'é' | tojson(true) }}",
    # call, filter, raw, with
    "{% macro m(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call m('a') %}x{% endcall %}|{% set y = 5 %}{% call m('b') %}{{ y }}{% call m('c') %}{{ y + 1 }}{% endcall %}{% endcall %}",
    "{% macro each(l) %}{% for x in l %}[{{ caller(x, loop.index) }}]{% endfor %}{% endmacro %}{% for z in ['p', 'q'] %}{% call(x, i='d') each([1, 2]) %}{{ z }}{{ x }}{{ i }}{% endcall %}{% endfor %}",
    "{% macro m() %}{% if caller %}has{% else %}none{% endif %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}",
    "{% macro n() %}({{ caller is defined }}){% endmacro %}{% macro m(a) %}{{ a }}{{ caller() }}{% endmacro %}{% call m(n()) %}{{ n() }}{% endcall %}",
    "{% set t = 'T' %}{% macro m(t) %}{% set u = 1 %}{{ caller() }}{% endmacro %}{% for k in [1] %}{% set v = 'V' %}{% call m('x') %}{{ t }}{{ u is defined }}{{ v }}{{ k }}{% endcall %}{% endfor %}",
    "{% filter upper %}a{{ 'b' }}{% endfilter %}{% filter trim | replace('a', 'x') %}  banana {% endfilter %}{% set x | upper | trim %} q {% endset %}[{{ x }}]",
    "{% filter upper %}{% for i in 'ab' %}{{ i }}{% filter lower %}C{% endfilter %}{% endfor %}{% endfilter %}",
    "{% raw %}{{ x }}{% if %}{# c #}{% endraw %}|a {%- raw -%}  b  {%- endraw -%}  c\n  {% raw %}\n d\n  {% endraw %}\ne{%raw%}{%endraw%}",
    "a\n   {% raw %} {{ 1 }} {% endraw %}   \n{{ 1 }}{% raw %}\n{% endraw %}\n\nb {%+ raw %} x {%+ endraw +%}\ny\n  {%- raw %} z{% endraw -%}\n w",
    "{% with a = 1, b = 2 %}{{ a + b }}{% set c = 3 %}{{ c }}{% endwith %}{{ a is defined }}{{ c is defined }}{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{% with %}x{% endwith %}",
    # sort, unique, sum, dictsort, min, max
    "{{ [3, 1, 2] | sort | join }}{{ ['b', 'A', 'c'] | sort | join }}{{ ['b', 'A', 'a', 'B'] | sort(case_sensitive=true) | join }}{{ [3, 1.5, 2] | sort(reverse=true) | join(',') }}{{ 'hello' | sort | join }}{{ ['b', 'B', 'a', 'A'] | sort(true) | join }}",
    "{{ [{'n': 'b', 'k': {'v': 2}}, {'n': 'a', 'k': {'v': 2}}, {'n': 'c', 'k': {'v': 1}}] | sort(attribute='k.v,n') | map(attribute='n') | join }}{{ [[2, 'a'], [1, 'b'], [1, 'a']] | sort | map('join') | join(',') }}{{ [[2, 'a'], [1, 'b']] | sort(attribute=0) | map('last') | join }}",
    "{{ [1, 2, 1, 3.0, 3] | unique | join(',') }}{{ ['a', 'A', 'b'] | unique | join }}{{ ['a', 'A', 'b'] | unique(true) | join }}{{ [{'x': 1}, {'x': 2}, {'x': 1}] | unique(attribute='x') | list | length }}{{ 'abca' | unique | join }}",
    "{{ [1, 2, 3] | sum }} {{ [1, 2.5] | sum }} {{ [] | sum }} {{ [{'p': 2}, {'p': 3}] | sum(attribute='p') }} {{ [1] | sum(start=10) }} {{ [[1], [2]] | sum(start=[]) | length }} {{ [{'p': 2}] | sum('p', 5) }}",
    "{% for k, v in {'b': 1, 'A': 3, 'c': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}{% for k, v in {'b': 1, 'A': 3, 'c': 2} | dictsort(false, 'value') %}{{ k }}{{ v }}{% endfor %}{% for k, v in {'b': 1, 'A': 3} | dictsort(case_sensitive=true, reverse=true) %}{{ k }}{% endfor %}",
    "{{ [3, 1, 2] | min }}{{ [3, 1.5, 2] | max }}{{ ['b', 'A'] | min }}{{ [] | max is defined }}{{ [{'a': 2}, {'a': 5}] | max(attribute='a') | tojson }}",
    # texts
    "{{ 'a\\nb\\r\\nc\\x0bd\\u2028e\\n'.splitlines() | join('|') }}{{ 'a\\nb\\n'.splitlines(true) | length }}{{ ''.splitlines() | length }}{{ 'a\\r\\nb'.splitlines(keepends=true)[0] | length }}",
    "{{ 'a\\n\\nb\\r\\nc\\u2028d\\n' | indent }}|{{ '' | indent }}|{{ '' | indent(2, true) }}|{{ '\\n' | indent(2, first=true, blank=true) }}|{{ 'a\\n\\nb' | indent(width=1, blank=true) }}|{{ 'a\\r' | indent(3, true, true) }}|{{ 'a\\n\\r' | indent(3, true, true) }}|",
    "{{ 'a\\nb' | indent('> ') }}{{ 'a\\nb' | indent('é', first=1) }}{{ 'a\\nb' | indent(0) }}{{ 'a\\nb' | indent(-3) }}{{ 'a\\nb' | indent(true) }}{{ {'a': [1, 'x\\ny']} | tojson(indent=4) | indent(8) }}{{ '{\\n' | indent(4, first=True) }}",
    "{{ 'Straße ﬁ ΑΣ ΑΣ. Σ ΑΣΑ İ ǆ ŉ' | lower }}|{{ 'straße ﬁ ας İ ǆ ŉ ᾳ' | upper }}|{{ 'ǆ ß ﬁn ΑΣ' | capitalize }}|{{ 'éÉ ﬁn ǆz o\\'neil 3d ªb ΑΣ' | title }}|{{ 'éÉ ﬁn ǆz o\\'neil 3d ªb ΑΣ (x [y-z'.title() }}|{{ 'ÉCOLE'.lower() }}{{ 'ﬁn'.capitalize() }}",
    "{{ 5 | upper }}{{ none | lower }}{{ true | capitalize }}{{ 'é' is lower }}{{ 'É' is upper }}{{ '1' is lower }}{{ 'aB' is upper }}{{ 5 | trim }}{{ 'my-title (x) y' | title }}",
    "{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('bc') }}{{ 'abc'.removeprefix('x') }}{{ 'banana'.count('an') }}{{ 'aaa'.count('aa') }}",
    # loops, tests, attributes
    "{% for a in [1, 2] %}{% for b in [1] %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}{{ loop.cycle('x', 'y') }}{{ loop.previtem is defined }}{{ loop.nextitem }}{% endfor %}",
    "{{ [{'f': {'n': 'a'}}, {'f': {'n': 'b'}}] | map(attribute='f.n') | join }}{{ [{'f': {'n': 'a'}}, {'f': {'n': 'b'}}] | selectattr('f.n', '==', 'b') | list | length }}{{ [1, 2, 3] | select('gt', 1) | join }}{{ [1, 2, 3] | reject('<=', 1) | join }}{{ [{'x': 1}, {}] | map(attribute='x', default='-') | join }}",
    "{{ 6 is divisibleby 3 }}{{ 6 is divisibleby(4) }}{{ 1 is lt 2 }}{{ 2 is ge(2) }}{{ 'a' is greaterthan 'b' }}{{ none is sameas none }}{{ true is sameas true }}{{ 1 is sameas true }}{{ 2 is not le 1 }}",
    "{{ 1 is eq 1.0 }}{{ [1, 2.0] == [1.0, 2] }}{{ {'a': 1} == {'a': 1.0} }}{{ 1 in [1.0] }}{{ [1, 2] < [1, 3] }}{{ 'a' <= 'b' }}",
]

# transformers refuses these as well.
ERRORS = ["{{ nothing.x }}", "{{ nothing + 'a' }}", "{{ 'a' + 1 }}", "{{ 1 // 0 }}", "{{ 1 < 'a' }}", "{% set messages.x = 1 %}",
          "{% for x in 5 %}{% endfor %}", "{{ messages[0].append(1) }}", "{% if %}", "{% for x in y %}", "{{ 'a", "{{ a b }}", "{% endif %}",
          "{{ messages | nosuch }}", "{{ 1 is nosuch }}", "{{ nosuch() }}", "{# a", "{{ 1", "{% break %}", "{{ [1, }}", "{{ 'a' | }}",
          "{% set a, b = [1] %}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{{ raise_exception('no é') }}", "{% nosuch %}", "{{ $ }}", "{{ 1 ~ 2 + 3 }}",
          "{{ 1.5 + 'a' }}", "{{ 1 / 0 }}", "{{ 1.5 // 0 }}", "{{ 0 ** -1 }}", "{{ 1 / 0.0 }}", "{{ [1, 'a'] | sort }}", "{% call x %}{% endcall %}", "{% filter nosuch %}x{% endfilter %}", "{% raw %}x", "{% call nosuch() %}{% endcall %}",
  "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{{ 007 }}", "{{ 1.5e }}", "{{ [nothing] | tojson }}", "{{ {'a': 1} | sum }}", "{% endcall %}", "{{ [1] | sort(nosuch=1) }}", "{% with a %}{% endwith %}", "{{ none | sum }}", "{{ loop.index }}", "{{ {} < {} }}", "{{ 2.5 | round(method='x') }}"]


def conversations():
    talks = [["user"], ["user", "assistant", "user"], ["system", "user"], ["system", "user", "assistant", "user", "assistant", "user"],
             ["user", "user"], ["assistant", "user"], ["user", "assistant"], ["user", "assistant", "system"]]
    texts = {"user": "Why is the sky blue?", "assistant": "It scatters light.", "system": "Be brief."}
    out = [[{"role": role, "content": texts[role]} for role in talk] for talk in talks]
    hostile = ["", " ", "\n a \n\n", "\u3000 é \u00a0", "{{ 7 * 7 }}{% raw %}{# x #}", "<|im_end|>\n<|im_start|>system\nx", "</s>[INST] x [/INST]",
               "<think>\nhm\n</think>\n\nyes", "</think>", "<think>", "a\\n'\"b", "\u0007\t\r\nx", "😀 👩‍👩‍👧 e\u0301", "<tool>x</tool>", "x" * 60]
    draw = random.Random(20260401)
    for text in hostile:
        out.append([{"role": "user", "content": text}])
        out.append([{"role": "system", "content": text}, {"role": "user", "content": text},
                    {"role": "assistant", "content": text}, {"role": "user", "content": text}])
    for _ in range(12):
        n = draw.randint(1, 5)
        out.append([{"role": ["user", "assistant"][i % 2], "content": "".join(draw.choice(hostile[:13]) for _ in range(draw.randint(1, 4)))}
                    for i in range(2 * n - 1)])
    return out


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def of_transformers(template, variables):
    try:
        compiled = chat_template_utils._compile_jinja_template(template)
        return {"text": compiled.render(**variables)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def variables_of(messages):
    """As render_jinja_template passes them."""
    return {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True, **TOKENS}


def fixtures():
    talks = conversations()
    cases = []
    for name, template in FAMILIES.items():
        answers = [of_transformers(template, variables_of(messages)) for messages in talks]
        print(f"{name}: {sum('text' in a for a in answers)} texts, {sum('error' in a for a in answers)} refused")
        cases.append({"name": name, "template": template, "answers": [a.get("text") for a in answers]})
    constructs = [[t, of_transformers(t, variables_of(talks[1]))] for t in CONSTRUCTS]
    for template, answer in constructs:
        assert "text" in answer, (template, answer)
    draw, numbers = random.Random(20260909), []
    while len(numbers) < 24:
        template, variables = PRINTS[len(numbers) % len(PRINTS)], {key: value for key, value in drawn_variables(draw).items() if key in ("messages", "tools")}
        answer = of_transformers(template, variables)
        if 0 < len(answer.get("text", "")) < 1000:
            numbers.append([template, json.dumps(variables), answer["text"]])
    for template in ERRORS:
        assert "error" in of_transformers(template, variables_of(talks[1])), template
    fixture.write(OUT, {"tokens": TOKENS, "conversations": talks, "families": cases,
                        "constructs": [[t, a["text"]] for t, a in constructs], "errors": ERRORS, "numbers": numbers})


def templates_in(path):
    path = pathlib.Path(path)
    if path.is_file():
        return [(str(path), path.read_text(encoding="utf-8"))]
    found = [(str(p), p.read_text(encoding="utf-8")) for p in sorted(path.rglob("*.jinja"))]
    for p in sorted(path.rglob("tokenizer_config.json")):
        template = json.loads(p.read_text()).get("chat_template")
        found += [(str(p), template)] if isinstance(template, str) else [(f"{p} {t['name']}", t["template"]) for t in template or []]
    return found


def of_eps(cases):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(cases, file)
        file.flush()
        out = subprocess.run([ROOT / "build" / "bin" / "test_template", "render", file.name], capture_output=True, check=True)
    return json.loads(out.stdout)


def compare(paths):
    found = [t for path in paths for t in templates_in(path)]
    talks, wrong, equal, both, total = conversations(), 0, 0, 0, 0
    for name, template in found:
        cases = [{"template": template, "variables": variables_of(messages)} for messages in talks]
        ours = of_eps(cases)
        theirs = [of_transformers(template, case["variables"]) for case in cases]
        bad = [(case, a, b) for case, a, b in zip(cases, ours, theirs) if a.get("text") != b.get("text")]
        total += len(cases)
        equal += sum("text" in b and a.get("text") == b["text"] for a, b in zip(ours, theirs))
        both += sum("error" in a and "error" in b for a, b in zip(ours, theirs))
        wrong += len(bad)
        print(f"{'differs' if bad else 'equal  '} {name}")
        for case, a, b in bad[:1]:
            print("   ", json.dumps(case["variables"]["messages"])[:200], "\n    eps", json.dumps(a)[:300], "\n    transformers", json.dumps(b)[:300])
    print(f"{len(found)} templates, {len(talks)} conversations each: {equal} texts equal, {both} refused by both, {wrong} differ")
    return wrong


# ---- drawn cases ----

PRINTS = ["{{ tools | tojson }}", "{% for t in tools or [] %}{{ t | tojson(indent=4) }}\n{% endfor %}", "{{ tools | tojson(indent=2, sort_keys=true) }}",
          "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
          "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}{{ k }}={{ v if v is string or v is number or v is boolean or v is none else v | tojson }};"
          "{% endfor %}{% endfor %}{% endfor %}",
          "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | dictsort %}<{{ k }}>{{ v | tojson(ensure_ascii=true) }}</{{ k }}>{% endfor %}{% endfor %}{% endfor %}",
          "{% for t in tools or [] %}{% for k, p in t.function.parameters.properties.items() %}{{ k }}:{{ p.default | default('-', true) if p.default is not mapping and p.default is not sequence else p.default | tojson }}"
          "{{ p.minimum if p.minimum is defined }}{{ p.maximum is number }}{{ p.minimum is float }}{{ p.minimum is integer }} {% endfor %}{% endfor %}",
          "{{ messages | selectattr('tool_calls', 'defined') | map(attribute='tool_calls.0.function.name') | unique | join(', ') }}",
          "{% filter trim %} {{ tools | tojson(separators=(',', ':')) }} {% endfilter %}"]


def number(draw):
    kind = draw.randrange(12)
    if kind == 0:
        return draw.choice([0, -1, 1, 2 ** 53 + 1, 2 ** 63 - 1, -2 ** 63, 2 ** 63, -2 ** 63 - 1, 10 ** 30, -10 ** 40])
    if kind == 1:
        return draw.choice([0.0, -0.0, 1e16, 1e15, 1e22, 1e23, 1e-4, 1e-5, 5e-324, 1.7976931348623157e308, 100.0, float("inf"), float("-inf"), float("nan")])
    if kind < 5:
        return round(draw.uniform(-1000, 1000), draw.randint(1, 4))
    if kind < 7:
        return draw.random() * 10.0 ** draw.randint(-20, 25)
    return draw.randint(-10 ** draw.randint(1, 25), 10 ** draw.randint(1, 25)) if kind < 9 else draw.choice([1.0, 0.1, 0.2, 0.5, 3.14, 19.99, 1e-07])


def value(draw, depth=2):
    kind = draw.randrange(8)
    if kind < 4 or depth == 0:
        return number(draw)
    if kind == 4:
        return draw.choice(["x", "é \u2028", "1.50", "", True, False, None, "a\nb\t\x7f\"\\"])
    if kind == 5:
        return {draw.choice("abcXYZ") * draw.randint(1, 2): value(draw, depth - 1) for _ in range(draw.randint(0, 3))}
    return [value(draw, depth - 1) for _ in range(draw.randint(0, 3))]


def drawn_variables(draw):
    calls = [{"type": "function", "function": {"name": draw.choice(["get", "put"]), "arguments": {draw.choice("bacBD"): value(draw) for _ in range(draw.randint(0, 4))}}}
             for _ in range(draw.randint(1, 2))]
    messages = [{"role": "user", "content": "How much?"}, {"role": "assistant", "content": "", "tool_calls": calls}, {"role": "tool", "content": str(number(draw))},
                {"role": "assistant", "content": "So much."}]
    tools = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {
        name: {"type": "number", **{key: value(draw, 1) if key == "default" else number(draw) for key in draw.sample(["default", "minimum", "maximum"], draw.randint(0, 3))}}
        for name in draw.sample(["a", "b", "price", "Zahl"], draw.randint(1, 3))}}}} for _ in range(draw.randint(1, 2))]
    return {**variables_of(messages), "tools": draw.choice([tools, tools, tools, None]), "x": number(draw), "y": draw.choice([1, 2.5, -3, 7, 0.1]), "n": draw.randint(0, 4),
            "text": "".join(draw.choice(["a", "B", "ß", "É", " ", "\n", "Σ", "ǆ", "-", "o'n", "12", "\r\n", "ﬁ", "İ", "x.y"]) for _ in range(draw.randint(0, 8))),
            "list": [draw.choice([draw.randint(-5, 5), draw.choice([0.5, 2.0, -1.25])]) for _ in range(draw.randint(0, 6))],
            "words": [draw.choice(["b", "A", "a", "C", "é", "É", "B", "ab", ""]) for _ in range(draw.randint(0, 6))],
            "rows": [{"k": draw.choice(["x", "Y", "y", "Z"]), "v": draw.choice([1, 2, 2.0, 0.5]), "in": {"d": draw.randint(0, 2)}} for _ in range(draw.randint(0, 5))]}


def quantity(draw, depth=2):
    if depth == 0 or draw.random() < 0.3:
        return draw.choice(["x", "y", "n", "1", "2", "0.5", "1e3", "2.5e-3", "3", "list | length", "list | sum", "(list | max | default(1))", "rows | sum(attribute='v')", "-1.5", "(text | length)"])
    left, right = quantity(draw, depth - 1), quantity(draw, depth - 1)
    return draw.choice([f"({left} {draw.choice(['+', '-', '*', '/', '//', '%'])} {right})", f"({left}) ** {draw.choice(['2', '0.5', '3', '-1', '0'])}", f"(-({left}))",
                        f"({left}) | abs", f"({left}) | round({draw.choice(['', '1', '2', '0, %sfloor%s' % (chr(39), chr(39)), '1, %sceil%s' % (chr(39), chr(39))])})", f"({left}) | int", f"({left}) | float",
                        f"({left} if {right} > {left} else {right})"])


def words(draw):
    flags = draw.choice(["", "(true)", "(case_sensitive=true)"])
    return draw.choice([
        f"{{{{ list | sort{draw.choice(['', '(true)', '(reverse=true)'])} | join(',') }}}}", f"{{{{ words | sort{draw.choice(['', '(true)', '(false, true)'])} | join('.') }}}}",
        f"{{{{ words | unique{flags} | join('.') }}}}", "{{ list | unique | list | tojson }}", "{{ words | min }}{{ words | max }}{{ list | min }}|{{ list | max }}",
        f"{{{{ rows | sort(attribute='{draw.choice(['k', 'v', 'in.d', 'k,v', 'in.d,k', 'v,in.d'])}'{draw.choice(['', ', reverse=true', ', case_sensitive=true'])}) | tojson }}}}",
        f"{{{{ rows | unique(attribute='{draw.choice(['k', 'v', 'in.d'])}') | list | tojson }}}}", "{{ rows | map(attribute='in.d') | join }}{{ rows | map(attribute='no', default=0) | list | tojson }}",
        f"{{{{ rows | selectattr('v', '{draw.choice(['gt', '<', 'ge', '==', 'ne', 'le', 'eq', 'lessthan'])}', {draw.choice(['1', '2', '0.5'])}) | list | tojson }}}}",
        f"{{% for k, v in (rows | first | default({{}})) | dictsort{draw.choice(['', '(true)', '(reverse=true)'])} if v is not mapping %}}{{{{ k }}}}{{{{ v }}}} {{% endfor %}}",
        f"{{{{ text.splitlines({draw.choice(['', 'true', 'keepends=true'])}) | tojson }}}}", f"{{{{ text | indent({draw.choice(['', '2', 'first=true', '3, true, true', 'blank=true'])}) }}}}", f"{{{{ text | {draw.choice(['upper', 'lower', 'title', 'capitalize'])} }}}}|{{{{ text.{draw.choice(['upper', 'lower', 'title', 'capitalize'])}() }}}}",
        "{{ text is lower }}{{ text is upper }}{{ text.count('a') }}{{ text.removeprefix('a') }}|{{ text.removesuffix('-') }}",
        "{% for a in list %}{{ loop.cycle('p', 'q') }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.revindex }}{{ a is divisibleby 2 if a is integer }}{{ a is gt 0 }}{{ loop.previtem is defined }} {% endfor %}",
        f"{{% filter {draw.choice(['upper', 'trim', 'lower | trim', 'title', 'replace(%sa%s, %sxy%s)' % ((chr(39),) * 4)])} %}} {{{{ text }}}} a {{% for w in words %}}{{{{ w }}}}{{% endfor %}} {{% endfilter %}}",
        f"{{% macro m(a, b=2) %}}<{{{{ a }}}}{{{{ caller({draw.choice(['', 'b', 'b, a'])}) if caller else '-' }}}}>{{% endmacro %}}{{% for w in words %}}{{% call({draw.choice(['', 'p=0, q=1', 'p=w, q=n'])}) m(w{draw.choice(['', ', 5'])}) %}}"
        f"[{{{{ w }}}}{{{{ n }}}}{{{{ p }}}}{{{{ a is defined }}}}]{{% endcall %}}{{{{ m(1) }}}}{{% endfor %}}",
        f"a{draw.choice(['', ' ', chr(10), chr(10) + '  '])}{{%{draw.choice(['', '-', '+'])} raw {draw.choice(['', '-'])}%}}{draw.choice([' {{ x }} ', chr(10) + '{% if %}', '{# #}' + chr(10), ''])}{draw.choice(['', chr(10) + '  '])}"
        f"{{%{draw.choice(['', '-', '+'])} endraw {draw.choice(['', '-', '+'])}%}}{draw.choice(['', ' b', chr(10) + 'b', chr(10) * 2])}{{{{ 1 }}}}",
        "{% with a = x, b = n %}{{ a }}{{ b }}{% set n = 9 %}{{ n }}{% endwith %}{{ n }}{{ b is defined }}", f"{{% set z | {draw.choice(['upper', 'trim', 'length'])} %}} {{{{ text }}}} {{% endset %}}[{{{{ z }}}}]"])


def draw_cases(n):
    kinds = {"numbers in calls and tools": lambda draw: draw.choice(PRINTS), "numbers that are computed": lambda draw: "".join("{{ %s }} " % quantity(draw) for _ in range(3)),
             "other constructs": words}
    wrong = 0
    for number_, (kind, make) in enumerate(kinds.items()):
        draw = random.Random(20260910 + number_)
        cases = [{"template": make(draw), "variables": drawn_variables(draw)} for _ in range(n // 3 + (n % 3 > number_))]
        count = {"equal": 0, "refused by both": 0, "refused here alone": 0, "differ": 0}
        for case, ours in zip(cases, of_eps(cases), strict=True):
            theirs = of_transformers(case["template"], case["variables"])
            what = ("equal" if ours.get("text") == theirs.get("text") else "differ") if "text" in ours else "refused by both" if "error" in theirs else "refused here alone"
            count[what] += 1
            if what == "differ" or (what == "refused here alone" and count[what] < 4):
                print("   ", what, case["template"][:300], json.dumps(ours)[:300], json.dumps(theirs)[:300])
        wrong += count["differ"]
        print(kind + ":", ", ".join(f"{value} {key}" for key, value in count.items() if value))
    return wrong


if __name__ == "__main__":
    os.environ["TZ"] = "UTC"
    time.tzset()
    chat_template_utils.datetime = Clock
    if sys.argv[1:] == ["fixtures"]:
        fixtures()
    elif sys.argv[1:2] == ["draw"]:
        sys.exit(draw_cases(int(sys.argv[2]) if len(sys.argv) > 2 else 1000) > 0)
    elif len(sys.argv) > 2 and sys.argv[1] == "compare":
        sys.exit(compare(sys.argv[2:]) > 0)
    else:
        sys.exit(__doc__)
