"""Where a run stands, told to a `kvflow_sdk.run.Run`.

Two seams, both offered by the SDK:

* the default runner, through which every ``Runner.run…`` goes, knows where a run begins
  and ends, and whether it is one inside another: an agent that was called as a tool;
* ``RunConfig.call_model_input_filter`` is called before each model call, with the agent,
  in the very task that makes the call. (Hooks run in tasks of their own: what they set
  in the context, the call does not see.) Its input goes on unchanged.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from agents import Agent, RunConfig, RunState
from agents.run import AgentRunner, get_default_agent_runner

from kvflow_integrations import adapter
from kvflow_integrations.adapter import Patches
from kvflow_sdk.client import Client, usable_client
from kvflow_sdk.context import Call, Scope, current_scope, within
from kvflow_sdk.graph import AgentStepGraph
from kvflow_sdk.run import Run

from .topology import below

__all__ = ["Attachment", "Tracked", "install"]

_ours: weakref.WeakSet[Run] = weakref.WeakSet()
"""The runs that this module has started."""


class Attachment(adapter.Attachment):
    """What belongs to one wrapped agent."""

    def __init__(
        self,
        original: Agent[Any],
        graph: AgentStepGraph | None,
        label: str,
        client: Client | None,
    ) -> None:
        super().__init__(original, client)
        self.graph = graph
        self.label = label


class Tracked:
    """Mixed into the class of a wrapped agent."""

    __slots__ = ()
    _kvflow: Attachment


class _Tracker:
    """One call of a ``Runner.run…``: of the wrapped agent, or inside its run."""

    def __init__(self, run: Run, path: str, *, inner: bool) -> None:
        self.run = run
        self._path = path
        self._inner = inner
        self._node: str | None = None

    def turn(self, name: str) -> Scope:
        """The agent `name` is the one that runs; its model calls are its own."""
        node = below(self._path, name)
        if node != self._node:
            if self._inner:
                self._leave()
            else:
                self.run.superstep(node)
            self.run.start(node)
            self._node = node
        return Scope(self.run, Call(self.run, node))

    def finish(self) -> None:
        if self._inner:
            self._leave()
        else:
            self.run.finish()

    def _leave(self) -> None:
        """The caller goes on; nothing follows the agent that it called."""
        if self._node is not None:
            self.run.end(self._node)
            self.run.superstep(subtree=self._node)


class _Filter:
    """The user's filter of what the model gets, preceded by our look at the agent."""

    def __init__(self, tracker: _Tracker, theirs: Any) -> None:
        self._tracker = tracker
        # An agent called as a tool inherits the configuration of its caller.
        self.theirs: Any = theirs.theirs if isinstance(theirs, _Filter) else theirs

    def __call__(self, data: Any) -> Any:
        try:
            # Stays for this task, that is for this turn; the runner restores it.
            within(self._tracker.turn(data.agent.name)).__enter__()
        except Exception as error:
            _count("a turn", error)
        return data.model_data if self.theirs is None else self.theirs(data)


class _Runner(AgentRunner):
    """The default runner, with a look at where runs begin and end."""

    def __init__(self, inner: AgentRunner) -> None:
        self.inner = inner

    async def run(self, starting_agent: Any, input: Any, **settings: Any) -> Any:
        extent = _Extent(starting_agent, input, settings)
        with extent:
            return await self.inner.run(starting_agent, input, **extent.settings)

    def run_sync(self, starting_agent: Any, input: Any, **settings: Any) -> Any:
        extent = _Extent(starting_agent, input, settings)
        with extent:
            return self.inner.run_sync(starting_agent, input, **extent.settings)

    def run_streamed(self, starting_agent: Any, input: Any, **settings: Any) -> Any:
        extent = _Extent(starting_agent, input, settings)
        with extent:
            result = self.inner.run_streamed(starting_agent, input, **extent.settings)
            if result.run_loop_task is not None:
                extent.ends_with(result.run_loop_task)
        return result


class _Extent:
    """One run, if it is to be tracked. Never raises."""

    def __init__(self, agent: Any, input: Any, settings: dict[str, Any]) -> None:
        self.settings = settings
        self._tracker: _Tracker | None = None
        self._within: within | None = None
        try:
            self._begin(agent, input)
        except Exception as error:
            _count("start of a run", error)

    def _begin(self, agent: Any, input: Any) -> None:
        scope = current_scope()
        if scope.run in _ours and scope.run is not None:
            caller = "" if scope.call is None else scope.call.agent
            self._tracker = _Tracker(scope.run, caller, inner=True)
        elif isinstance(agent, Tracked):
            client = agent._kvflow.usable()
            if client is None:
                return
            run = client.start_run(agent._kvflow.graph)
            _ours.add(run)
            self._tracker = _Tracker(run, agent._kvflow.label, inner=False)
        else:
            return
        # A run that was interrupted goes on with the agent that it stopped in.
        first = input._current_agent if isinstance(input, RunState) else None
        self._within = within(self._tracker.turn((first or agent).name))
        self.settings = {
            **self.settings,
            "run_config": _filtered(self.settings.get("run_config"), self._tracker),
        }

    def ends_with(self, task: Any) -> None:
        """The run goes on in `task`."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            task.add_done_callback(lambda _: _finish(tracker))

    def __enter__(self) -> None:
        if self._within is not None:
            self._within.__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        if self._within is not None:
            self._within.__exit__(*exc_info)
        if self._tracker is not None:
            _finish(self._tracker)


def _filtered(config: Any, tracker: _Tracker) -> Any:
    """`config` with our filter. Not a `RunConfig` where there was none: the SDK closes
    the model provider of a run only if the caller gave no `RunConfig`."""
    name = "call_model_input_filter"
    if isinstance(config, RunConfig):
        ours = _Filter(tracker, config.call_model_input_filter)
        return dataclasses.replace(config, call_model_input_filter=ours)
    given = config if isinstance(config, dict) else {}
    return {**given, name: _Filter(tracker, given.get(name))}


def _finish(tracker: _Tracker) -> None:
    try:
        tracker.finish()
    except Exception as error:
        _count("end of a run", error)


def _count(what: str, error: BaseException) -> None:
    client = usable_client()
    if client is not None:
        client.counters.error(what, error)


def install(patches: Patches) -> None:
    """Put our runner before the default one."""
    import agents.run

    runner = _Runner(get_default_agent_runner())
    patches.set(agents.run, "DEFAULT_AGENT_RUNNER", runner)
