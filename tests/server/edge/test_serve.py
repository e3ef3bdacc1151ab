"""`kvflow serve` completes the user's flags and never overrides one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvflow_server.edge.serve import LaunchPlan, ServeError, ServeOptions, plan
from kvflow_server.emulated.platform import DEVICE_ENV
from kvflow_server.engine.config import EngineConfig, EngineConfigError, Mode
from kvflow_server.policy.backup import Backup

DEFAULT = Path("models") / "default"


def plan_of(
    *args: str, gpu: bool = False, options: ServeOptions | None = None
) -> LaunchPlan:
    return plan(options or ServeOptions(), args, gpu=gpu, default_model=lambda: DEFAULT)


def flags(plan: LaunchPlan) -> dict[str, str | None]:
    """Flag to value over the whole command line; the last one wins, as in SGLang."""
    found: dict[str, str | None] = {}
    words = iter([*plan.argv, "--"])
    word = next(words)
    while word != "--":
        name, equals, value = word.partition("=")
        word = next(words)
        if equals:
            found[name] = value
        elif word.startswith("--"):
            found[name] = None
        else:
            found[name], word = word, next(words)
    return found


def test_without_a_gpu_the_emulated_accelerator_is_chosen() -> None:
    made = plan_of("--model-path", "m")
    assert made.emulated
    assert made.env["SGLANG_PLATFORM"] == "kvflow_emulated"
    assert flags(made)["--device"] == "cpu"
    assert flags(made)["--attention-backend"] == "torch_native"


def test_with_a_gpu_nothing_is_emulated() -> None:
    made = plan_of("--model-path", "m", gpu=True)
    assert not made.emulated
    assert "SGLANG_PLATFORM" not in made.env
    assert flags(made) == {
        "--model-path": "m",
        "--radix-cache-backend": "kvflow",
        "--enable-hierarchical-cache": None,
    }


def test_emulation_can_be_forced_and_hides_the_gpu() -> None:
    made = plan_of("--model-path", "m", gpu=True, options=ServeOptions(emulated=True))
    assert made.emulated
    assert made.env["CUDA_VISIBLE_DEVICES"] == ""


def test_asking_for_the_cpu_device_is_asking_for_emulation() -> None:
    assert plan_of("--model-path", "m", "--device", "cpu", gpu=True).emulated


def test_a_named_device_is_not_replaced_by_emulation() -> None:
    assert not plan_of("--model-path", "m", "--device", "xpu", gpu=False).emulated


def test_unknown_flags_go_to_sglang_untouched_and_first() -> None:
    given = ("--model-path", "m", "--tp", "2", "--served-model-name=x", "--port", "1")
    assert plan_of(*given).argv[: len(given)] == given


@pytest.mark.parametrize(
    "given",
    [
        ("--max-total-tokens", "99"),
        ("--max-total-tokens=99",),
        ("--dtype", "bfloat16"),
        ("--hicache-io-backend", "kernel"),
        ("--radix-cache-backend", "mine"),
        ("--mem-fraction-static", "0.3"),
    ],
)
def test_a_flag_the_user_gave_is_not_added_again(given: tuple[str, ...]) -> None:
    made = plan_of("--model-path", "m", *given)
    name = given[0].partition("=")[0]
    assert [word.partition("=")[0] for word in made.argv].count(name) == 1


def test_sglangs_other_name_for_a_flag_counts_as_given() -> None:
    made = plan_of("--model", "m", "--enable-hicache", gpu=True)
    assert made.added == (("--radix-cache-backend", "kvflow"),)


def test_flags_in_a_config_file_count_as_given(tmp_path: Path) -> None:
    config = tmp_path / "sglang.yaml"
    config.write_text("model-path: m\nmax-total-tokens: 5\nsleep-on-idle: false\n")
    made = flags(plan_of("--config", str(config)))
    assert "--model-path" not in made
    assert "--max-total-tokens" not in made
    assert "--sleep-on-idle" in made


def test_a_config_file_says_what_sglang_reads_in_it(tmp_path: Path) -> None:
    # SGLang refuses `--model_path`; taking it for given would only hide why.
    config = tmp_path / "sglang.yaml"
    config.write_text("model_path: m\n")
    assert "--model-path" in flags(plan_of("--config", str(config)))
    config.write_text("")
    assert "--model-path" in flags(plan_of("--config", str(config)))


@pytest.mark.parametrize("content", [None, "- a list", "a: [unclosed"])
def test_a_config_file_that_cannot_be_read_is_an_error_that_names_it(
    tmp_path: Path, content: str | None
) -> None:
    config = tmp_path / "sglang.yaml"
    if content is not None:
        config.write_text(content)
    with pytest.raises(ServeError, match=r"sglang\.yaml"):
        plan_of("--config", str(config))


def test_no_model_without_a_gpu_means_the_default_model() -> None:
    assert flags(plan_of())["--model-path"] == str(DEFAULT)


def test_no_model_with_a_gpu_is_an_error() -> None:
    with pytest.raises(ServeError, match="--model-path"):
        plan_of(gpu=True)


@pytest.mark.parametrize("mode", list(Mode))
def test_the_mode_reaches_child_processes_by_environment(mode: Mode) -> None:
    made = plan_of("--model-path", "m", options=ServeOptions(mode=mode))
    assert made.env["KVFLOW_MODE"] == mode.value


def test_the_bandwidth_reaches_child_processes_by_environment() -> None:
    made = plan_of("--model-path", "m", options=ServeOptions(pcie_gbps=0.05))
    assert made.env["KVFLOW_EMULATED_PCIE_GBPS"] == "0.05"


def test_stock_keeps_the_hierarchical_cache_and_leaves_kvflow_out() -> None:
    made = flags(plan_of("--model-path", "m", options=ServeOptions(stock=True)))
    assert "--radix-cache-backend" not in made
    assert "--enable-hierarchical-cache" in made


def test_stock_without_host_memory_has_no_hicache_flag() -> None:
    made = flags(
        plan_of("--model-path", "m", options=ServeOptions(stock=True, hicache=False))
    )
    assert not [name for name in made if "hicache" in name or "hierarchical" in name]


def test_stock_may_do_without_the_radix_cache() -> None:
    options = ServeOptions(stock=True)
    made = flags(plan_of("--model-path", "m", "--disable-radix-cache", options=options))
    assert "--enable-hierarchical-cache" not in made


@pytest.mark.parametrize(
    ("args", "options", "gpu", "named"),
    [
        (("--disable-radix-cache",), ServeOptions(), False, "--disable-radix-cache"),
        ((), ServeOptions(hicache=False), False, "--no-hicache"),
        (
            ("--enable-hicache",),
            ServeOptions(hicache=False, mode=Mode.EVICT),
            False,
            "--no-hicache",
        ),
        ((), ServeOptions(pcie_gbps=0.1), True, "--emulated-pcie-gbps"),
        ((), ServeOptions(pcie_gbps=-1.0), False, "--emulated-pcie-gbps"),
        ((), ServeOptions(pcie_gbps=float("nan")), False, "--emulated-pcie-gbps"),
    ],
)
def test_what_cannot_work_is_refused_by_the_name_of_its_flag(
    args: tuple[str, ...], options: ServeOptions, gpu: bool, named: str
) -> None:
    with pytest.raises(ServeError, match=named):
        plan_of("--model-path", "m", *args, gpu=gpu, options=options)


@pytest.mark.parametrize("backup", [None, Backup.FIXED, Backup.REUSED, Backup.ALL])
def test_what_is_backed_up_is_said_only_if_it_was_asked_for(
    backup: Backup | None,
) -> None:
    made = plan_of("--model-path", "m", options=ServeOptions(backup=backup))
    said = made.env.get("KVFLOW_BACKUP")
    assert said == (None if backup is None else backup.value)
    chosen = EngineConfig.from_env(made.env)
    assert chosen.backup is (backup or Backup.REUSED)


def test_an_unknown_backup_is_refused_with_the_known_ones() -> None:
    with pytest.raises(EngineConfigError, match="fixed, reused, all"):
        EngineConfig.from_env({"KVFLOW_BACKUP": "some"})


def test_the_horizon_of_an_idle_bus_is_one_step_further() -> None:
    prefetch = EngineConfig.from_env({"KVFLOW_PREFETCH_HORIZON": "3"}).prefetch
    assert (prefetch.horizon, prefetch.idle_horizon) == (3, 4)


def test_a_paced_device_gets_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A team would spin between its passes, on the cores of everybody else."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.delenv(DEVICE_ENV, raising=False)
    assert "OMP_NUM_THREADS" not in plan_of("--model-path", "m").env
    monkeypatch.setenv(DEVICE_ENV, "device.json")
    assert plan_of("--model-path", "m").env["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert plan_of("--model-path", "m").env["OMP_NUM_THREADS"] == "3"
