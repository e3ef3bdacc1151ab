"""Pairs of consecutive prompts of one agent that differ in one thing.

``⟦old|new⟧`` is that thing; everything else is the same in both. Written from what
prompts look like in public templates and in bug reports of people whose cache never
hit, before the classifier was run on them.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CASES", "Case"]


class Case(NamedTuple):
    kind: str
    text: str

    @property
    def texts(self) -> tuple[str, str]:
        """The prompt before and after."""
        head, _, rest = self.text.partition("⟦")
        old, _, rest = rest.partition("|⟧|") if "|⟧|" in rest else rest.partition("|")
        new, _, tail = rest.partition("⟧")
        return head + old + tail, head + new + tail


_RULES = (
    "\nYou are a careful analyst. Answer in three sentences, cite the figures that you "
    "used, and say plainly what you do not know.\n"
)

CASES: tuple[Case, ...] = (
    # timestamp
    Case("timestamp", "Current time: 2026-11-30T14:03:⟦07|58⟧Z" + _RULES),
    Case(
        "timestamp", "[⟦2026-11-30 09:15:00|2026-12-01 17:45:31⟧] system start" + _RULES
    ),
    Case("timestamp", "It is now Mon, 30 Nov 2026 ⟦14:03:07|14:05:00⟧ GMT." + _RULES),
    Case("timestamp", "Now: ⟦9:41 AM|10:02 AM⟧. Be brief." + _RULES),
    Case("timestamp", "now=⟦1764510187|1764510202⟧" + _RULES),
    Case("timestamp", '{"ts": ⟦1764510187123|1764511187004⟧}' + _RULES),
    Case("timestamp", "Time (UTC): 11/30/2026, ⟦2:03:07|2:03:59⟧ PM" + _RULES),
    Case(
        "timestamp",
        "The time is ⟦Mon Nov 30 14:03:07|Tue Dec  1 08:00:00⟧ UTC 2026" + _RULES,
    ),
    Case("timestamp", "Generated at 20261130T1403⟦07|22⟧Z." + _RULES),
    Case("timestamp", "Today is November 30, 2026 at ⟦14:03|14:04⟧." + _RULES),
    # date
    Case(
        "date",
        "Cutting Knowledge Date: December 2023\nToday Date: ⟦26 Jul 2024|27 Jul 2024⟧\n"
        + _RULES,
    ),
    Case("date", "Today's date is 2026-11-⟦29|30⟧." + _RULES),
    Case(
        "date",
        "The current date is ⟦Monday, November 30, 2026|Tuesday, December 1, 2026⟧."
        + _RULES,
    ),
    Case("date", "Date: ⟦30.11.2026|01.12.2026⟧" + _RULES),
    Case("date", "Date: ⟦11/30/26|12/01/26⟧" + _RULES),
    Case("date", "It is ⟦Sunday|Monday⟧ today." + _RULES),
    Case(
        "date",
        "As of the ⟦1st of December 2026|2nd of December 2026⟧, rates hold." + _RULES,
    ),
    # uuid and other identifiers
    Case(
        "uuid",
        "Session ⟦6f1c2b1e-8f0b-4d57-9a43-0c5b7f6a1d2e|f0a1b2c3-1111-4222-8333-944455556666⟧"
        + _RULES,
    ),
    Case(
        "uuid",
        "trace_id: ⟦4bf92f3577b34da6a3ce929d0e0e4736|00f067aa0ba902b74bf92f3577b34da6⟧"
        + _RULES,
    ),
    Case(
        "uuid", "Conversation thread_⟦abC12xYz99QrT0|9KdLm2PqRs77Vw⟧ begins." + _RULES
    ),
    Case("uuid", "request-id: req_01H⟦8XGJWBWBAQ4ZZ|9YHKXCXCBR5AA⟧" + _RULES),
    Case("uuid", '<boundary id="⟦a91f0c3e77|b05d2e9a18⟧">' + _RULES),
    Case("uuid", "commit ⟦9ef49e1c0ffee|b6b822bdeadbee⟧ is deployed." + _RULES),
    # counter
    Case("counter", "This is request #⟦1041|1042⟧." + _RULES),
    Case("counter", "Turn ⟦3|4⟧ of 20." + _RULES),
    Case("counter", "You have used ⟦9|10⟧ of 50 steps." + _RULES),
    Case("counter", "Attempt number ⟦1|2⟧" + _RULES),
    Case("counter", "Messages so far: ⟦128|131⟧" + _RULES),
    Case("counter", "Step ⟦99|100⟧: think first." + _RULES),
    # reordered tools
    Case(
        "reordered tools",
        'Tools: ⟦[{"name": "search", "description": "Find pages"}, {"name": "calc", "description": "Sums"}]'
        '|⟧|[{"name": "calc", "description": "Sums"}, {"name": "search", "description": "Find pages"}]⟧'
        + _RULES,
    ),
    Case(
        "reordered tools",
        '<tools>\n⟦{"type": "function", "function": {"name": "get_weather"}}\n{"type": "function", "function": {"name": "get_news"}}'
        '|⟧|{"type": "function", "function": {"name": "get_news"}}\n{"type": "function", "function": {"name": "get_weather"}}⟧\n</tools>'
        + _RULES,
    ),
    Case(
        "reordered tools",
        "You can use these tools:\n⟦- search: find pages\n- calculator: sums\n- mail: send a letter"
        "|⟧|- mail: send a letter\n- search: find pages\n- calculator: sums⟧\n"
        + _RULES,
    ),
    Case(
        "reordered tools",
        "Available tools: ⟦search, browser, python|⟧|python, search, browser⟧."
        + _RULES,
    ),
    Case(
        "reordered tools",
        '{"functions": ⟦[{"name": "a", "parameters": {}}, {"name": "b", "parameters": {}}]'
        '|⟧|[{"name": "b", "parameters": {}}, {"name": "a", "parameters": {}}]⟧}'
        + _RULES,
    ),
    # reordered JSON keys
    Case(
        "reordered JSON keys",
        'Profile: ⟦{"age": 41, "city": "Bern"}|⟧|{"city": "Bern", "age": 41}⟧' + _RULES,
    ),
    Case(
        "reordered JSON keys",
        'Schema: {"type": "object", "properties": ⟦{"q": {"type": "string"}, "k": {"type": "integer"}}'
        '|⟧|{"k": {"type": "integer"}, "q": {"type": "string"}}⟧}' + _RULES,
    ),
    Case(
        "reordered JSON keys",
        '```json\n{\n  ⟦"model": "m1",\n  "mode": "fast"|⟧|"mode": "fast",\n  "model": "m1"⟧\n}\n```'
        + _RULES,
    ),
    Case(
        "reordered JSON keys",
        'state={"plan": [1, 2], "user": ⟦{"id": 7, "plan": "pro"}|⟧|{"plan": "pro", "id": 7}⟧, "z": null}'
        + _RULES,
    ),
    Case(
        "reordered JSON keys",
        '[{"type": "function", "function": ⟦{"name": "f", "parameters": {}}|⟧|{"parameters": {}, "name": "f"}⟧}]'
        + _RULES,
    ),
    # retrieved text
    Case(
        "retrieved text",
        "Context:\n⟦The Treaty of Westphalia ended the Thirty Years' War in 1648 and changed how states dealt with each other."
        "|⟧|Photosynthesis turns light into sugar; the green of leaves comes from chlorophyll, which absorbs red and blue.⟧\n"
        + _RULES,
    ),
    Case(
        "retrieved text",
        "<documents>\n⟦Q3 revenue rose 4 percent to 12 million|⟧|The board met on a rainy afternoon in Oslo⟧\n</documents>"
        + _RULES,
    ),
    Case(
        "retrieved text",
        "Relevant memories: ⟦likes short answers|prefers metric units always⟧" + _RULES,
    ),
    Case(
        "retrieved text",
        "Search results:\n[1] ⟦Gold hits a record as the dollar weakens|⟧|Copper falls on weak demand from builders⟧\n"
        + _RULES,
    ),
    Case(
        "retrieved text",
        "Use the passages below.\n\n⟦Bees dance to tell where flowers are, and the angle of the dance gives the direction of the sun."
        "|⟧|A violin has four strings tuned in fifths; its bow is strung with horse hair and rubbed with rosin.⟧\n\n"
        + _RULES,
    ),
    Case(
        "retrieved text",
        "Knowledge base excerpt: ⟦Refunds take five working days.|⟧|Parcels over 30 kg go by freight.⟧"
        + _RULES,
    ),
    # user name
    Case("user name", "You are talking to ⟦Anna Berger|Tom Fischer⟧." + _RULES),
    Case("user name", "User: ⟦maria.lopez@example.com|j.doe@example.org⟧" + _RULES),
    Case(
        "user name",
        "You are the assistant of ⟦Priya|Olufemi⟧, who works in sales." + _RULES,
    ),
    Case("user name", "Hello ⟦Søren|Zoë⟧, I am your tutor." + _RULES),
    Case("user name", "customer_name: ⟦Jean-Luc|Jean-Paul⟧" + _RULES),
    Case("user name", "The user is logged in as @⟦alice99|bobby⟧ today." + _RULES),
    Case("user name", "You help Dr. ⟦Ng|Okafor⟧ with patients." + _RULES),
    # what has no kind of its own
    Case("other text", "Answer in ⟦English|German⟧." + _RULES),
    Case("other text", "Mood: ⟦cheerful|grave⟧" + _RULES),
    Case("other text", "The exchange rate is ⟦1.0712|1.0838⟧." + _RULES),
    Case("reordered items", "Topics: ⟦gold, oil, wheat|⟧|wheat, gold, oil⟧." + _RULES),
    Case("reordered items", '{"tags": ⟦["a", "b", "c"]|⟧|["c", "a", "b"]⟧}' + _RULES),
    Case("timestamp", "at 2026-11-30T14:03:07.⟦123456|987654⟧+01:00" + _RULES),
    Case("date", "Week of ⟦Nov 23|Nov 30⟧, 2026." + _RULES),
    Case("uuid", "machine i-0⟦abcd1234ef567890|fedc9876ba543210⟧" + _RULES),
    Case("counter", "Visitors today: ⟦5|6⟧" + _RULES),
    Case("user name", "Write on behalf of ⟦Lena Kowalska|Ben Hur⟧." + _RULES),
)
