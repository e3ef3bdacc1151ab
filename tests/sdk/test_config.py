"""Settings: code over environment over default, and errors that say what is wrong."""

from __future__ import annotations

from dataclasses import fields

import pytest

from kvflow_sdk.config import Config, origin_of, server_root
from kvflow_sdk.errors import ConfigError

URL = "http://localhost:30000/v1"


def test_defaults_need_no_environment() -> None:
    assert Config.load({}) == Config()


def test_environment_beats_the_default() -> None:
    config = Config.load({"KVFLOW_SERVER": URL, "KVFLOW_TIMEOUT": "0.5"})
    assert (config.server, config.timeout) == (URL, 0.5)


def test_code_beats_the_environment() -> None:
    environ = {"KVFLOW_CLIENT_NAME": "theirs", "KVFLOW_MAX_RUNS": "7"}
    config = Config.load(environ, client_name="mine")
    assert (config.client_name, config.max_runs) == ("mine", 7)


def test_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFLOW_SERVER", URL)
    assert Config.load().server == URL


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_switch_is_on(text: str) -> None:
    assert Config.load({"KVFLOW_DISABLE": text}).disable


@pytest.mark.parametrize("text", ["0", "false", "No", "off", ""])
def test_switch_is_off(text: str) -> None:
    assert not Config.load({"KVFLOW_DISABLE": text}).disable


@pytest.mark.parametrize("setting", [item.name for item in fields(Config)])
def test_empty_variable_is_the_default(setting: str) -> None:
    variable = f"KVFLOW_{setting.upper()}"
    assert Config.load({variable: ""}) == Config()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("KVFLOW_SERVER", "localhost:30000"),
        ("KVFLOW_SERVER", "ftp://localhost"),
        ("KVFLOW_SERVER", "http://"),
        ("KVFLOW_SERVER", "http://host:port"),
        ("KVFLOW_DISABLE", "maybe"),
        ("KVFLOW_TIMEOUT", "soon"),
        ("KVFLOW_TIMEOUT", "-1"),
        ("KVFLOW_PROBE_TTL", "nan"),
        ("KVFLOW_MAX_RUNS", "0"),
        ("KVFLOW_MAX_RUNS", "1.5"),
        ("KVFLOW_CLIENT_NAME", "a\nb"),
    ],
)
def test_unusable_value_is_an_error_that_quotes_it(variable: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load({variable: text})
    value = float(text) if text in ("-1", "nan") else text
    value = int(text) if text == "0" else value
    assert repr(value) in str(caught.value)


def test_unknown_setting_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"serverr.*client_name"):
        Config.load({}, serverr=URL)


def test_key_is_not_shown() -> None:
    assert "secret" not in repr(Config(api_key="secret"))


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://LocalHost:30000/v1", "http://localhost:30000"),
        ("http://localhost/v1/", "http://localhost:80"),
        ("https://example.org", "https://example.org:443"),
        ("https://key@example.org/a/v1?x=1", "https://example.org:443"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_origin_is_scheme_host_and_port(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://h:1/v1", "http://h:1"),
        ("http://h:1/v1/", "http://h:1"),
        ("http://h:1", "http://h:1"),
        ("http://h:1/models/a/v1", "http://h:1/models/a"),
    ],
)
def test_routes_hang_below_the_base_url_without_v1(url: str, root: str) -> None:
    assert server_root(url) == root
