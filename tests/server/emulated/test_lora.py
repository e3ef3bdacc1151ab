"""Host memory for SGLang's LoRA on a machine without a GPU."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch

with warnings.catch_warnings():
    # SGLang's modules warn of hardware that is not there.
    warnings.simplefilter("ignore")
    # First, or its lazy choice of a platform meets itself half imported.
    from sglang.srt.platforms import current_platform  # noqa: F401  # isort: skip
    from kvflow_server.emulated.lora import Pageable

pytestmark = pytest.mark.sglang


def test_memory_asked_for_as_pinned_is_plain() -> None:
    with Pageable():
        made = torch.tensor([1, 2], dtype=torch.int32, pin_memory=True)
        copied = made.pin_memory()
    assert made.tolist() == copied.tolist() == [1, 2]
    assert made.data_ptr() != copied.data_ptr()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is memory to pin")
def test_other_threads_are_told_that_there_is_none_to_pin() -> None:
    errors: list[Exception] = []

    def ask() -> None:
        try:
            torch.zeros(1, pin_memory=True)
        except RuntimeError as error:
            errors.append(error)

    with Pageable():
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert len(errors) == 1
