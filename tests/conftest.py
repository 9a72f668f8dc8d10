"""For all tests: one thread a process, GPU tests skipped where there is no GPU, slow ones unless they are asked for."""

import logging

import pytest
import torch


def pytest_configure() -> None:
    torch.set_num_threads(1)
    logging.getLogger("c10d-NullHandler-dcp_logger").addFilter(lambda _: False)  # pages of it beside a failure


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" not in config.option.markexpr:
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="takes minutes: pytest -m slow"))
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU, found none"))
