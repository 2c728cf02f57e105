# SPDX-License-Identifier: Apache-2.0
"""A stand-in for nfsrdma on a target. Keeps its state and its arguments in state.json."""

import itertools
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STATE = HERE / "state.json"


def main() -> None:
    words = sys.argv[1:]
    state = json.loads(STATE.read_text())
    state["calls"].append(words)
    out = answer(state, words)
    STATE.write_text(json.dumps(state))
    print(out)


def answer(state: dict, words: list[str]) -> str:  # type: ignore[type-arg]
    plain = [word for word in words if word != "--json"]
    for known, name in ((["mounts"], "mounts"), (["tune", "show"], "tuned"),
                        (["server", "status"], "server"), (["module", "status"], "module"),
                        (["link", "show"], "links"), (["doctor"], "findings"),
                        (["doctor", "--", "server"], "findings")):  # fmt: skip
        if plain == known:
            facts = {name: state[name]} if isinstance(state[name], list) else state[name]
            return json.dumps({"schema_version": 1, **facts})
    act(state, words)
    return "done"


def act(state: dict, words: list[str]) -> None:  # type: ignore[type-arg]
    refused = state["refuse"].get(words[0])
    if refused:
        STATE.write_text(json.dumps(state))
        sys.exit(f"nfsrdma: {refused}")
    if words[0] == "mount":
        flags = dict(itertools.pairwise(words))
        source, path = words[words.index("--") + 1 :]
        state["mounts"].append({
            "target": source, "directory": path, "transport": flags["--transport"],
            "vers": flags["--vers"], "rsize": int(flags.get("--rsize", 1048576)),
            "wsize": int(flags.get("--wsize", 1048576)), "nconnect": 1, "fstype": "nfs4",
            "read_ahead_kb": 128, "flags": ["rw", "relatime"],
            "options": {"vers": flags["--vers"], "hard": "", "addr": "10.0.0.1"},
        })  # fmt: skip
    elif words[0] == "umount":
        state["mounts"] = [m for m in state["mounts"] if m["directory"] != words[-1]]
    elif words[:2] == ["server", "enable"]:
        clients = [word.partition("=")[2] for word in words if word.startswith("--client=")]
        state["server"]["own"].append(words[-1])
        state["server"]["listeners"].append({"transport": "rdma", "port": 20049})
        options = ["ro" if "--read-only" in words else "rw", "insecure"]
        state["server"]["exports"] += [
            {"path": words[-1], "client": client, "options": options} for client in clients
        ]
    elif words[:2] == ["server", "disable"]:
        state["server"] = {"own": [], "listeners": [], "exports": [], "versions": []}
    elif words[0] == "tune":
        state["tuned"] = [] if words[1] == "undo" else [tuned(words)]
    elif words[0] == "module":
        module(state["module"], words[1])


def tuned(words: list[str]) -> dict[str, object]:
    flags = dict(itertools.pairwise(words))
    rsize = int(flags["--rsize"]) if "--rsize" in flags else None
    kb = int(flags["--read-ahead"]) * (rsize or 4096) // 1024 if "--read-ahead" in flags else None
    now = {"rsize": rsize, "wsize": None, "read_ahead_kb": kb}
    return {"directory": flags["--mount"], **now, "in_effect": now, "pending": []}


def module(status: dict[str, object], verb: str) -> None:
    if verb in ("load", "unload"):
        status["owner"], status["ours"] = ("nfsrdma", "1") if verb == "load" else ("rpcrdma", "")
    else:
        status["installed"] = "0.1.0" if verb == "install" else ""


if __name__ == "__main__":
    main()
