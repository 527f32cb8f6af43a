"""Nodes and processes of real Ray clusters that die, again and again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SmallIndex

pytestmark = pytest.mark.slow

# In processes of their own: a process has one Ray, and the other tests use theirs.
_NODE = """
import json, os, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster
from hardnet.retrieval.cluster import ShardedIndex
from hardnet.retrieval.index import Index

folder, query = sys.argv[1:]
room = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={**room, "include_dashboard": False})
nodes = [cluster.add_node(**room) for _ in range(2)]

def rows(results):
    return [[h.path, h.score, h.inliers] for h in results]

def homes(index):
    import ray
    def home(self):
        return ray.get_runtime_context().get_node_id()
    return ray.get([slot.actor.__ray_call__.remote(home) for slot in index._slots])

with ShardedIndex(folder, cluster.address, shards=3) as index:
    features = index._index.extract(query)
    expected = rows(Index(folder).search(features, 9))
    said = {"before": rows(index.search(features, 9)) == expected}
    before = homes(index)
    victim = next(node for node in nodes if node.node_id in before)
    number = before.index(victim.node_id) + 1
    cluster.remove_node(victim, allow_graceful=False)
    partial = index.search(features, 9)
    said["missing"] = partial.missing
    said["number"] = number
    gone = {p for slot in index._slots if not slot.is_open for p in slot.positions}
    snapshot = index.snapshot
    said["partial"] = [h.path for h in partial if snapshot.locate(h.image)[0] in gone]
    said["back"] = index.wait(120)
    said["moved"] = victim.node_id not in homes(index)
    after = index.search(features, 9)
    said["after"] = rows(after) == expected and not after.missing
cluster.shutdown()
print(json.dumps(said))
"""


def run(code: str, *arguments: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    last: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return last


@pytest.fixture(autouse=True)
def _ray_is_installed() -> None:
    pytest.importorskip(
        "ray", reason='TESTS OF THE CLUSTER DO NOT RUN: pip install "hardnet[cluster]"'
    )


def test_shards_of_a_dead_node_move_to_another(small: SmallIndex) -> None:
    said = run(_NODE, small.folder, small.photos["camera.png"])
    assert said["before"]
    missing = said["missing"]
    assert isinstance(missing, list)
    assert any(text.startswith(f"shard {said['number']} of 3") for text in missing)
    assert said["partial"] == []
    assert said["back"]
    assert said["moved"]
    assert said["after"]


def test_a_build_with_workers_killed_at_random(small: SmallIndex, tmp_path: Path) -> None:
    code = """
import json, os, random, signal, sys, threading, time
from pathlib import Path
from hardnet.retrieval.build import build
from hardnet.retrieval.cluster.describers import describers_on
from hardnet.retrieval.photos import IndexSettings
from hardnet.retrieval.store.snapshot import open_snapshot

folder, photos = Path(sys.argv[1]), Path(sys.argv[2])
names = {f"{n} {p.name}": p for n in range(16) for p in sorted(photos.glob("c*.png"))}
settings = IndexSettings(keypoints=200, max_size=300)
chance, kills = random.Random(0), 0
build(folder / "here", names, settings, words=16)

def workers():
    parents, found = {}, []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            parents[int(entry.name)] = int(fields[1])
            if b"ray::describe" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    # The workers are children of a process that this one has started.
    return [pid for pid in found if parents.get(parents[pid]) == os.getpid()]

def kill():
    global kills
    while kills < 4 and not done.wait(1 + 2 * chance.random()):
        for pid in workers()[:1]:
            os.kill(pid, signal.SIGKILL)
            kills += 1

with describers_on("local", settings) as describers:
    done = threading.Event()
    killer = threading.Thread(target=kill)
    killer.start()
    report = build(folder / "there", names, settings, words=16, describing=describers)
    done.set()
    killer.join()
facts = [
    [s.facts.file.crc32 for s in open_snapshot(folder / n).manifest.segments]
    for n in ("here", "there")
]
print(json.dumps({"kills": kills, "same": facts[0] == facts[1], "skipped": report.skipped}))
"""
    said = run(code, tmp_path, small.photos["camera.png"].parent)
    assert said["kills"]
    assert said["skipped"] == {}
    assert said["same"]
