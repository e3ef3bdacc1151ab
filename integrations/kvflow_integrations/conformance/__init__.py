"""The conformance kit: one set of scenarios for every adapter, as pytest tests.

Say how a scenario is built in your framework, and subclass `Conformance`::

    from kvflow_integrations.conformance import Conformance, Harness, Program

    class MyHarness(Harness):
        def build(self, scenario, url, client):
            return MyProgram(...)

    class TestMyFramework(Conformance):
        harness = MyHarness()

The agents' calls go through the framework's own LLM client to a real HTTP server (the
*stage*), which answers by the scenario's script; what each call and each step update
says is compared with steps that were written down by hand. The same scenarios run
against a real KVFlow server, which stands behind the stage. Needs pytest.
"""

from .course import Course
from .harness import Harness, Mode, Program, WatchedClient
from .kit import Conformance, play
from .loopback import Loopback, Seen
from .scenarios import END, SCENARIOS, Feature, Moment, Scenario, steps
from .stage import Heard, Stage, messages, system_prompt

__all__ = [
    "END",
    "SCENARIOS",
    "Conformance",
    "Course",
    "Feature",
    "Harness",
    "Heard",
    "Loopback",
    "Mode",
    "Moment",
    "Program",
    "Scenario",
    "Seen",
    "Stage",
    "WatchedClient",
    "messages",
    "play",
    "steps",
    "system_prompt",
]
