"""One capture and survey of the stack for all tests of the package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from generator.analyze import Analysis, analyze
from generator.capture import Capture, capture
from generator.compile.subject import Subject, load_subject
from generator.compile.survey import Kind, survey
from generator.plan import hardware_of
from kb.dtype import Target
from runtime.device import cpu_device
from validator.worker import Worker


@pytest.fixture(scope="package")
def subject() -> Subject:
    return load_subject("tests.generator.compile.modules:stack")


@pytest.fixture(scope="package")
def worker() -> Iterator[Worker]:
    """A process of the judge, started once."""
    running = Worker(Target.CPU)
    yield running
    running.close()


@pytest.fixture(scope="package")
def captured(subject: Subject) -> Capture:
    return capture(subject.module, subject.args)


@pytest.fixture(scope="package")
def analysis(captured: Capture) -> Analysis:
    return analyze(captured.graph, {})


@pytest.fixture(scope="package")
def kinds(captured: Capture, analysis: Analysis) -> tuple[Kind, ...]:
    return survey(analysis.regions, captured.graph, hardware_of(cpu_device()), limit=2)
