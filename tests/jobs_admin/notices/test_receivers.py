"""The receivers in docs/alerts.md verify what the desk sends, and refuse what it did not."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from jobs_admin import notices
from tests.kit.endpoints import answering
from tests.kit.notices import ANN, deliver, notice, webhook

pytestmark = pytest.mark.django_db

PAGE = Path(__file__).resolve().parents[3] / "docs/alerts.md"
RUN = """
const asked = JSON.parse(await new Promise((done) => { let text = ""; process.stdin.on("data", (part) => text += part).on("end", () => done(text)); }));
console.log(JSON.stringify(asked.map(([secret, headers, body]) => {
  try { return verify(secret, headers, body).data.message; } catch (error) { return `refused: ${error.message}`; }
})));
"""


@pytest.mark.extras
def test_the_node_receiver_of_the_page_verifies_and_refuses(endpoint, tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node on this machine: install nodejs (Debian and Ubuntu: apt install nodejs)")
    (snippet,) = re.findall(r"```js\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "receiver.mjs").write_text(snippet + RUN)
    there = endpoint(answering(204))
    channel, old = webhook("pager", there.url)
    new = notices.rotate(ANN, channel.pk)
    notice(channel, body={"message": "ümläut"})
    deliver()
    (seen,) = there.seen
    body = seen.body.decode()
    cases = [
        (old, seen.headers, body),
        (new, seen.headers, body),
        (new, seen.headers, body.replace("ü", "u")),
        (new, seen.headers | {"webhook-id": "alert-1-2"}, body),
        (new, seen.headers | {"webhook-timestamp": "1700000000"}, body),
        (new, {k: v for k, v in seen.headers.items() if k != "webhook-signature"}, body),
    ]
    done = subprocess.run(
        [node, tmp_path / "receiver.mjs"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=True,
        timeout=90,
    )
    assert json.loads(done.stdout) == ["ümläut"] * 2 + ["refused: not signed by the desk"] * 2 + [
        "refused: too old",
        "refused: not signed by the desk",
    ]
