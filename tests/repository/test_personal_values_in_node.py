"""A program in another language reads personal values by what docs/reference/wire.md says of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

VECTORS = Path(__file__).parents[1] / "personal_values.json"
#: Reads the vectors as a consumer in another language would, with nothing but its own library.
NODE = """
const {createDecipheriv} = require('node:crypto');
const {readFileSync} = require('node:fs');
const all = JSON.parse(readFileSync(process.argv[1]));
const open = (key, data, bound) => {
  const d = createDecipheriv('aes-256-gcm', key, data.subarray(0, 12));
  d.setAAD(Buffer.from(bound)); d.setAuthTag(data.subarray(-16));
  return Buffer.concat([d.update(data.subarray(12, -16)), d.final()]);
};
const {key: k, master: m} = all;
const key = open(Buffer.from(m.key, 'base64'), Buffer.from(k.wrapped, 'base64'),
                 `relay:key\\n1\\n${k.id}\\n${m.name}`);
const read = (value, pointer) => {
  if (value === null || typeof value !== 'object') return value;
  const it = value['relay:personal'];
  if (it) return JSON.parse(open(key, Buffer.from(it.data, 'base64'),
                                 `relay:personal\\n${it.v}\\n${it.context}\\n${it.key}\\n${pointer}`));
  const below = (name) => `${pointer}/${String(name).replaceAll('~', '~0').replaceAll('/', '~1')}`;
  if (Array.isArray(value)) return value.map((item, place) => read(item, below(place)));
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, read(item, below(name))]));
};
console.log(JSON.stringify(all.cases.map((it) => read(it.encrypted, ''))));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")
def test_a_program_in_another_language_reads_them() -> None:
    done = subprocess.run(["node", "-e", NODE, str(VECTORS)], capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [it["payload"] for it in json.loads(VECTORS.read_text())["cases"]]
