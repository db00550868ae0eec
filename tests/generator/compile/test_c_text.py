"""Launch expressions in C have the values the evaluator gives them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from generator.compile.c_text import c_text
from kb.expr import Expr

SIZES = {"s0": 7, "width": 1000, "num_sms": 132}
TEXTS = (
    "1",
    "s0 * 4 + width // 3",
    "ceil_div(width, 64) * s0",
    "min(s0, width, num_sms)",
    "max(ceil_div(s0, 8), 1)",
    "width % 7 - s0",
    "s0 > 4 and width <= 1000",
    "not s0 > 4 or width == 3",
    "1 < s0 <= 7",
    "-s0 + 9",
)


def test_every_form_of_expression_has_the_same_value(tmp_path: Path) -> None:
    prints = "\n".join(f'  std::printf("%lld\\n", (long long)({c_text(Expr(t))}));' for t in TEXTS)
    dims = "\n".join(f"constexpr int {name} = {size};" for name, size in SIZES.items())
    (tmp_path / "t.cpp").write_text(f"#include <cstdio>\n{dims}\nint main() {{\n{prints}\n}}\n")
    subprocess.run(["g++", "-std=c++17", "t.cpp", "-o", "t"], cwd=tmp_path, check=True, timeout=60)
    done = subprocess.run(["./t"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=20)
    assert [int(line) for line in done.stdout.split()] == [int(Expr(t).evaluate(SIZES)) for t in TEXTS]
