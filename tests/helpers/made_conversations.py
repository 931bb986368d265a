"""Conversations of our own, with tools, thoughts and code, in OpenAI's form."""

import json
import random

from fake_engine import ByteTokenizer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "What a shelf of the store holds of an item.",
            "parameters": {
                "type": "object",
                "properties": {
                    "item": {"type": "string"},
                    "shelf": {"type": "integer"},
                },
                "required": ["item", "shelf"],
            },
        },
    }
]

ITEMS = (
    "copper wire",
    "oak boards",
    "brass hinges",
    "lamp oil",
    "wool felt",
    "iron nails",
    "glass panes",
    "linen thread",
    "pine tar",
    "tin cups",
    "rope coils",
    "clay tiles",
)

PLACES = ("harbour", "mill", "chapel", "school", "bakery", "forge", "inn", "farm")

ASKING = (
    "Please check shelf {shelf} for {item}; the {place} wants {count} of them.",
    "The {place} has ordered {count} of {item}. Are there enough on shelf {shelf}?",
    "How much {item} is left on shelf {shelf}? I promised {count} to the {place}.",
)

CODE_EVERY = 3

TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\nYou may call functions. These exist:\\n' }}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
{{- 'Call one with <tool_call>{"name": ..., "arguments": ...}</tool_call>.' }}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- set last = namespace(user=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set last.user = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if message.reasoning_content and loop.index0 > last.user %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{%- if message.content %}{{- message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{- call.function.arguments }}
{%- else %}{{- call.function.arguments | tojson }}{%- endif %}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
{{- '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""A chat template in the manner of Qwen's: tools, and thoughts since the last question.
"""


def made_conversation(rounds=2, *, seed=0):
    """
    Somebody asks a store-keeper for *rounds* things, who looks each of them up.

    A round has two turns of the assistant: a thought with a call of a tool, and a
    thought with an answer, every third with code.
    """
    chosen = random.Random(seed)  # noqa: S311 - no secret
    said = [{"role": "system", "content": "You keep the store of a village."}]
    for number in range(rounds):
        facts = {
            "item": chosen.choice(ITEMS),
            "place": chosen.choice(PLACES),
            "shelf": chosen.randrange(1, 60),
            "count": chosen.randrange(5, 90),
            "stock": chosen.randrange(2, 120),
            "price": chosen.randrange(3, 40),
        }
        said += _round(number, facts, chosen.choice(ASKING))
    return {"messages": said, "tools": TOOLS}


def _round(number, facts, asking):
    item, place, shelf = facts["item"], facts["place"], facts["shelf"]
    arguments = json.dumps({"item": item, "shelf": shelf})
    function = {"name": "look_up", "arguments": arguments}
    held = {name: facts[name] for name in ("item", "shelf", "stock", "price")}
    yield {"role": "user", "content": asking.format(**facts)}
    yield {
        "role": "assistant",
        "content": None,
        "reasoning_content": f"The {place} wants {facts['count']} of {item}. I have to "
        f"look at shelf {shelf} first.",
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }
    yield {"role": "tool", "tool_call_id": f"c{number}", "content": json.dumps(held)}
    yield {"role": "assistant", **_answer(number, facts)}


def _answer(number, facts):
    item, place, shelf, count = (
        facts[name] for name in ("item", "place", "shelf", "count")
    )
    stock, price = facts["stock"], facts["price"]
    answer = (
        f"Yes. Shelf {shelf} holds {stock} units of {item}, so after the {count} for "
        f"the {place} there are {stock - count} left. At {price} each that is "
        f"{count * price}."
        if stock >= count
        else f"No. Shelf {shelf} holds {stock} units of {item}, which is "
        f"{count - stock} too few for the {place}. At {price} each the {stock} cost "
        f"{stock * price}."
    )
    if number % CODE_EVERY == CODE_EVERY - 1:
        answer += (
            f"\n\n```python\nstock = {stock}\norder = {count}\nprice = {price}\n"
            "print(min(stock, order) * price)\n```\n"
        )
    thought = f"The stock is {stock} and the order is {count}."
    return {"content": answer, "reasoning_content": thought}


class FakeTemplate(ByteTokenizer):
    """Renders conversations as `TEMPLATE` does, but shorter; tokens are bytes."""

    def __init__(self, drops=(), opens=""):
        super().__init__()
        self.drops = drops
        self.opens = opens

    def render_conversation(self, messages, tools, *, begins_reply, thinking):
        asked = [at for at, each in enumerate(messages) if each["role"] == "user"]
        head = "".join(tool["function"]["name"] for tool in tools)
        parts = (
            [f"<tools>{head}</tools>"] if tools and "tools" not in self.drops else []
        )
        for at, each in enumerate(messages):
            kept = {key: it for key, it in each.items() if key not in self.drops}
            parts.append(f"<{each['role']}>")
            if kept.get("reasoning_content") and at > asked[-1]:
                parts.append(f"<think>{kept['reasoning_content']}</think>")
            parts.append(kept.get("content") or "")
            for call in kept.get("tool_calls", ()):
                function = call["function"]
                values = json.loads(function["arguments"])
                parts.append(f"<call>{function['name']} {json.dumps(values)}</call>")
            parts.append("<end>")
        return "".join([*parts, f"<assistant>{self.opens}" if begins_reply else ""])
