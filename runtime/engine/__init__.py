"""The decode engine: requests in, tokens out.

    from runtime.engine import Engine, EngineConfig, SamplingParams

    with Engine.from_pretrained("models/tiny-qwen3") as engine:
        [result] = engine.generate(["The assert statement"], SamplingParams(max_tokens=64))
        print(result.text)

To read it top to bottom: ``request`` (what is asked for), ``plan`` (what one step does), ``scheduler`` (who is in
it), ``staging`` (how the device is told), ``runtime.models.decoder`` (the model as a list of calls), ``program`` (those
calls bound), ``library_ops`` (what runs them by default), ``executor`` (the step), ``sampling``, ``text``, and
``engine``, the loop around it all.
"""

from runtime.engine.config import ConfigError, EngineConfig
from runtime.engine.engine import Engine, Result
from runtime.engine.request import FinishReason, Output, RequestError, SamplingParams, TokenLogprobs
from runtime.models.spec import ModelError

__all__ = [
    "ConfigError",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "ModelError",
    "Output",
    "RequestError",
    "Result",
    "SamplingParams",
    "TokenLogprobs",
]
