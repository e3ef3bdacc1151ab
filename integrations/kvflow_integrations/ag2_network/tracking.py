"""Where a channel stands, told to a `kvflow_sdk.run.Run`.

A listener of the hub hears when a channel opens and closes: that is a run. Who has the
word is seen where the hub's notice arrives: `AgentClient.receive` says which channel,
and `Agent.ask`, which the client calls in the same task, is the turn. An agent that is
asked within a turn, as a tool or a task, executes together with the one that has it; so
does one that is consulted through a channel of its own, opened within a turn.
"""

from __future__ import annotations

import functools
import re
import weakref
from contextvars import ContextVar
from typing import Any

from ag2 import Agent
from ag2.network import AgentClient, ChannelMetadata, ChannelState, Envelope, Hub

from kvflow_integrations import adapter
from kvflow_integrations.adapter import Patches
from kvflow_sdk.client import Client
from kvflow_sdk.context import Call, Scope, current_scope, within
from kvflow_sdk.graph import SEPARATOR
from kvflow_sdk.run import Run

from .topology import Member, read_graph

__all__ = ["Attachment", "attachment_of", "hub_of", "install", "members_of"]

_SUBTASK = re.compile(r"^subtask-[0-9a-f]{8}$")
"""ag2 names the agents of ``run_subtask`` so, each anew."""

_hubs: weakref.WeakKeyDictionary[Any, Attachment] = weakref.WeakKeyDictionary()


class _Conversation:
    """A channel, and the run that it belongs to."""

    def __init__(self, run: Run, caller: str | None, nodes: dict[str, str]) -> None:
        self.run = run
        self.caller = caller
        """The node in whose turn it was opened, if in any."""
        self.nodes = nodes
        """By id of a participant."""


class _Word:
    """What one delivery may lead to: a turn of `agent`."""

    def __init__(self, owner: Attachment, talk: _Conversation, client: Any) -> None:
        self.owner = owner
        self.talk = talk
        self.agent = client.agent
        self.node = talk.nodes.get(client.agent_id, client.passport.name)


_WORD: ContextVar[_Word | None] = ContextVar("kvflow_ag2_word", default=None)


class Attachment(adapter.Attachment):
    """What belongs to one wrapped hub; and its listener."""

    def __init__(self, hub: Hub, client: Client | None, label: str) -> None:
        super().__init__(None, client)
        self._hub = weakref.ref(hub)
        self.label = label
        self.agents: weakref.WeakValueDictionary[str, Agent[Any]]
        self.agents = weakref.WeakValueDictionary()
        """By id: those that got something from the hub."""
        self._talks: dict[str, _Conversation] = {}
        self._openers: dict[str, Scope] = {}
        """By channel that is not open yet: who has the word that opened it."""

    @property
    def hub(self) -> Hub | None:
        return self._hub()

    def attach(self) -> None:
        hub = self.hub
        assert hub is not None
        _hubs[hub] = self
        hub.register_listener(self)

    def detach(self) -> None:
        self.end_all()
        hub = self.hub
        if hub is not None:
            _hubs.pop(hub, None)
            hub.unregister_listener(self)

    def end_all(self) -> None:
        """No channel goes on: the hub is closed, or not tracked any more."""
        for talk in list(self._talks.values()):
            self._finish(talk)
        self._talks.clear()
        self._openers.clear()

    def talk(self, channel: ChannelMetadata) -> _Conversation | None:
        """The conversation in `channel`, begun if need be; None if it is not tracked."""
        known = self._talks.get(channel.channel_id)
        if known is not None or channel.state != ChannelState.ACTIVE:
            return known
        scope = self._openers.pop(channel.channel_id, None)
        members = members_of(self, channel)
        if scope is not None and scope.run is not None and scope.call is not None:
            run, caller = scope.run, scope.call.agent
        else:
            client = self.usable()
            if client is None:
                return None
            run, caller = client.start_run(read_graph(channel, members)), None
        nodes = {
            each: member.node if caller is None else _below(caller, member.node)
            for each, member in members.items()
        }
        talk = self._talks[channel.channel_id] = _Conversation(run, caller, nodes)
        return talk

    async def on_channel_event(self, channel_id: str, kind: str, payload: Any) -> None:
        """Of the hub's listeners."""
        try:
            if kind == "created":
                scope = current_scope()
                if any(talk.run is scope.run for talk in self._talks.values()):
                    self._openers[channel_id] = scope
            elif kind == "opened":
                self.talk(payload["metadata"])
            elif kind in ("closed", "expired"):
                self._openers.pop(channel_id, None)
                talk = self._talks.pop(channel_id, None)
                if talk is not None:
                    self._finish(talk)
        except Exception as error:
            self.count("a channel", error)

    async def on_envelope_posted(self, envelope: Envelope, metadata: Any) -> None:
        """Of the hub's listeners: where a person is next, nothing else says so."""
        try:
            talk, hub = self._talks.get(envelope.channel_id), self.hub
            if talk is None or hub is None or talk.caller is not None:
                return
            state = hub.adapter_state(envelope.channel_id)
            if getattr(state, "last_envelope_id", None) != envelope.envelope_id:
                return  # somebody has spoken since
            following = getattr(state, "expected_next_speaker", None) or ""
            node = talk.nodes.get(following)
            if node is not None and _is_human(hub, following):
                talk.run.superstep(node)
                talk.run.start(node)
        except Exception as error:
            self.count("a person's turn", error)

    def _finish(self, talk: _Conversation) -> None:
        if talk.caller is None:
            talk.run.finish()


def attachment_of(hub: object) -> Attachment | None:
    """Of a hub that is wrapped."""
    return _hubs.get(hub) if isinstance(hub, Hub) else None


def hub_of(client: Any) -> Hub | None:
    """The hub of an `AgentClient`, if it runs in this process."""
    hub = getattr(getattr(client, "_hub_client", None), "_hub", None)
    return hub if isinstance(hub, Hub) else None


def members_of(attachment: Attachment, channel: ChannelMetadata) -> dict[str, Member]:
    """The participants of `channel` by id, in their order."""
    hub = attachment.hub
    assert hub is not None
    agents: dict[str, Agent[Any]] = dict(attachment.agents)
    # Those that were registered by the hub itself are known before they hear of it.
    for owned in getattr(hub, "_owned_clients", ()):
        for known in list(owned._clients.values()):
            if isinstance(known, AgentClient):
                agents[known.agent_id] = known.agent
    members = {}
    for part in sorted(channel.participants, key=lambda part: part.order):
        node = _below(attachment.label, hub.name_for(part.agent_id))
        human = _is_human(hub, part.agent_id)
        members[part.agent_id] = Member(node, human, agents.get(part.agent_id))
    return members


def _is_human(hub: Hub, agent_id: str) -> bool:
    passport = hub._passports.get(agent_id)
    return passport is not None and passport.kind == "human"


def _below(path: str, name: str) -> str:
    return f"{path}{SEPARATOR}{name}" if path else name


class _Turn:
    """One execution of an agent. Never raises into it."""

    def __init__(self, owner: Attachment, run: Run, node: str, caller: str | None):
        self._owner = owner
        self._run = run
        self._node = node
        self._caller = caller
        self._within: within | None = None

    def __enter__(self) -> None:
        try:
            if self._caller is None:
                self._run.superstep(self._node)
            self._run.start(self._node, caller=self._caller)
        except Exception as error:
            self._owner.count("start of a turn", error)
        self._within = within(Scope(self._run, Call(self._run, self._node)))
        self._within.__enter__()

    def __exit__(self, kind: Any, *exc_info: Any) -> None:
        assert self._within is not None
        self._within.__exit__(kind, *exc_info)
        try:
            if self._caller is not None:
                # The caller goes on; nothing follows the agent that it called.
                self._run.end(self._node, caller=self._caller)
                self._run.superstep(subtree=self._node)
            elif kind is None:
                self._run.end(self._node)
            else:
                # The hub still expects this agent; `resume_pending_turns` asks again.
                self._run.suspend(self._node)
        except Exception as error:
            self._owner.count("end of a turn", error)


def _turn_of(agent: Any) -> _Turn | None:
    """The turn that begins when `agent` is asked here."""
    word, scope = _WORD.get(), current_scope()
    if word is None or word.owner.released:
        return None
    talk = word.talk
    if scope.call is None and agent is word.agent:
        return _Turn(word.owner, talk.run, word.node, talk.caller)
    if scope.call is None or scope.run is not talk.run:
        return None
    name = "subtask" if _SUBTASK.match(agent.name) else agent.name
    caller = scope.call.agent
    return _Turn(word.owner, talk.run, _below(caller, name), caller)


async def _word_of(client: Any, envelope: Envelope) -> _Word | None:
    hub = hub_of(client)
    owner = attachment_of(hub)
    if hub is None or owner is None:
        return None
    try:
        owner.agents[client.agent_id] = client.agent
        talk = owner.talk(await hub.get_channel(envelope.channel_id))
        return None if talk is None else _Word(owner, talk, client)
    except Exception as error:
        owner.count("a delivery", error)
        return None


def install(patches: Patches) -> None:
    """Set the hooks; see above."""
    patches.set(AgentClient, "receive", _hook_receive(AgentClient.receive))
    patches.set(Agent, "ask", _hook_ask(Agent.ask))
    patches.set(Hub, "close", _hook_close(Hub.close))


def _hook_receive(original: Any) -> Any:
    @functools.wraps(original)
    async def receive(client: Any, envelope: Envelope) -> Any:
        token = _WORD.set(await _word_of(client, envelope))
        try:
            # Clients that serve several agents deliver in the task of any of them.
            with within(Scope()):
                return await original(client, envelope)
        finally:
            _WORD.reset(token)

    return receive


def _hook_ask(original: Any) -> Any:
    @functools.wraps(original)
    async def ask(agent: Any, *message: Any, **settings: Any) -> Any:
        turn = _turn_of(agent)
        if turn is None:
            return await original(agent, *message, **settings)
        with turn:
            return await original(agent, *message, **settings)

    return ask


def _hook_close(original: Any) -> Any:
    @functools.wraps(original)
    async def close(hub: Any) -> Any:
        try:
            return await original(hub)
        finally:
            owner = attachment_of(hub)
            if owner is not None:
                owner.end_all()

    return close
