"""What README.md shows runs, from its first line to its last."""

import contextlib
import io
import pathlib
import re

README = pathlib.Path(__file__).parent.parent / "README.md"


def test_the_examples_run_one_after_the_other() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        for block in blocks:
            exec(compile(block, str(README), "exec"), names)
    assert said.getvalue().splitlines() == [
        "b'a record' True",
        "shared memory 1.0",
        "b'hello, device'",
        "b'hello from a device'",
    ]
