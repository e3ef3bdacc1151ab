"""What `wrap` and `unwrap` leave of a classic group chat: everything."""

from __future__ import annotations

from typing import Any

import openai
from autogen import ConversableAgent, GroupChat, GroupChatManager

from kvflow_integrations import ag2 as integration
from kvflow_sdk.client import Client
from kvflow_sdk.config import Config


def everything(manager: Any) -> list[dict[str, int]]:
    """The attributes of a chat's objects and of their classes, by identity."""
    chat = manager.groupchat
    objects = [manager, chat, *chat.agents]
    classes = [ConversableAgent, GroupChat, GroupChatManager]
    classes += [openai.OpenAI, openai.AsyncOpenAI]
    return [
        {name: id(value) for name, value in vars(each).items()}
        for each in (*objects, *classes)
    ]


def test_unwrapping_restores_every_attribute() -> None:
    made = [
        ConversableAgent(name, llm_config=False, human_input_mode="NEVER")
        for name in "ab"
    ]
    chat = GroupChat(made, max_round=3, speaker_selection_method="round_robin")
    manager = GroupChatManager(chat, llm_config=False, silent=True)
    user = ConversableAgent("user", llm_config=False, human_input_mode="NEVER")
    before = everything(manager)
    with Client(config=Config()) as client:
        tracked = integration.wrap(manager, client=client)
        other = integration.wrap(manager, client=client)
        assert everything(manager) != before
        assert integration.unwrap(other) is manager
        assert integration.unwrap(tracked) is manager
        assert integration.unwrap(tracked) is manager
    assert everything(manager) == before
    user.initiate_chat(manager, message="Go on.", silent=True)
