# SPDX-License-Identifier: Apache-2.0
"""The commands in the documentation exist, and each block runs or has a reason why not."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from pages import PAGES, ROOT, Step, blocks, calls, spans

from nfsrdma_tools.cli.main import app

HAND_WRITTEN = [page for page in PAGES if not page.read_text().startswith("<!-- generated")]
COMMANDS = ROOT / "docs/reference/commands.md"
PROGRAM = typer.main.get_command(app)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def unknown(words: list[str]) -> list[str]:
    """The subcommands and options of a call that the program does not offer in its help."""
    command: Any = PROGRAM
    rest = list(words)
    while inner := getattr(command, "commands", {}):
        own = {"--help", "...", *(opt for each in command.params for opt in each.opts)}
        if not rest or rest[0].isupper() or rest[0] in own:
            return []
        if rest[0] not in inner or inner[rest[0]].hidden:
            return [rest[0]]
        command = inner[rest.pop(0)]
    options = [each for each in command.params if not getattr(each, "hidden", False)]
    known = {"--help", *(opt for each in options for opt in (*each.opts, *each.secondary_opts))}
    return [
        word for word in rest if re.match(r"--?[a-z]", word) and word.split("=")[0] not in known
    ]


def test_blocks_are_found() -> None:
    assert sum(len(blocks(page)) for page in PAGES) > 30


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_block_has_commands(page: Path) -> None:
    fences = len(re.findall(r"^```console$", page.read_text(), re.M))
    assert len(blocks(page)) == fences
    assert all(block.steps for block in blocks(page))


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=name)
def test_commands_are_in_console_blocks_only(page: Path) -> None:
    text = re.sub(r"^```console\n.*?^```$", "", page.read_text(), flags=re.M | re.S)
    assert re.findall(r"^\s*[#$] ?nfsrdma .*|^ {4,}nfsrdma [a-z].*", text, re.M) == []


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=name)
def test_commands_and_options_exist(page: Path) -> None:
    shown = [step.command for block in blocks(page) for step in block.steps]
    words = [call for text in (*shown, *spans(page)) for call in calls(text)]
    missing = [(" ".join(call), word) for call in words if (word := unknown(call))]
    assert missing == []


def test_calls_are_found_in_a_shell_command() -> None:
    command = "nfsrdma lab ssh demo -- nfsrdma doctor --json | head -3; nfsrdma mounts  # --no"
    assert list(calls(command)) == [["lab", "ssh", "demo"], ["doctor", "--json"], ["mounts"]]


def test_unknown_words_are_found() -> None:
    assert unknown(["doctor", "--jsn", "server"]) == ["--jsn"]
    assert unknown(["docter"]) == ["docter"]
    assert unknown(["COMMAND", "--help"]) == []


@pytest.mark.parametrize(
    ("output", "printed", "matches"),
    [
        (["a", "c"], "a\nb\nc", True), (["a", "c"], "c\na", False),
        (["got 5 (...)"], "x\ngot 5 (why)", True), (["got 5"], "got 55", False),
    ],
)  # fmt: skip
def test_output_matches_in_order(output: list[str], printed: str, matches: bool) -> None:
    assert Step(True, "true", 1, output).matches(printed) == matches


PAGE = """
# A page

On the server, whose nfsd
listens on RDMA:

<!-- before: true -->
<!-- before on the client: false -->
<!-- after: umount /mnt -->
<!-- output: stable -->
```console
# hostname
```

On the server look at this.

```console
# hostname
```

On both hosts:

<!-- not run: a reason -->
```console
# hostname
```
"""


def test_the_paragraph_before_a_block_names_its_host(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    first, second, third = blocks(page)
    assert [block.nodes for block in (first, second, third)] == [
        ("server",),
        (),
        ("server", "client"),
    ]
    assert first.before == [("", "true"), ("client", "false")]
    assert first.after == ["umount /mnt"]
    assert first.stable
    assert not first.reason
    assert third.reason == "a reason"


def test_a_page_that_shows_an_error_shows_a_failing_command() -> None:
    finding = ["x error    links            no RDMA link"]
    assert Step(False, "nfsrdma doctor server", 1, finding).fails
    assert not Step(False, "nfsrdma explain", 1, finding).fails
    assert Step(False, "nfsrdma mount server:/export /mnt", 1, ["nfsrdma: rsize: ..."]).fails
    assert not Step(False, "nfsrdma doctor", 1, ["+ ok       links"]).fails
    required = "nfsrdma mounts --require proto=rdma"
    assert Step(False, required, 1, ["/mnt: proto: found tcp, required rdma"]).fails
    assert not Step(False, required, 1, []).fails


@pytest.mark.parametrize("page", [ROOT / "CHANGELOG.md", *HAND_WRITTEN], ids=name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    rooms = "nfsrdma_tools|tests|tools|kmod|bpf|playbooks|docs"
    paths = re.findall(rf"`((?:{rooms})/[\w./-]+)`", page.read_text())
    # NAME and PART stand for any word
    patterns = [re.sub("NAME|PART", "*", path) for path in paths]
    assert [pattern for pattern in patterns if not any(ROOT.glob(pattern))] == []


def test_each_picture_is_shown_and_can_be_remade() -> None:
    source = (ROOT / "bench" / "pictures" / "page.py").read_text()
    text = "".join(page.read_text() for page in PAGES)
    for image in (ROOT / "docs" / "img").iterdir():
        assert f"img/{image.name})" in text
        assert image.suffix == ".svg" or f'"{image.stem}"' in source


def commands(page: Path) -> list[str]:
    """The commands of a page without their comments, in order."""
    return [re.sub(r"\s+# .*", "", step.command) for block in blocks(page) for step in block.steps]


@pytest.mark.parametrize("page", [*HAND_WRITTEN, COMMANDS], ids=name)
def test_no_message_has_two_brackets_in_a_row(page: Path) -> None:
    messages = re.findall(r"^(?:nfsrdma: |\* `).*", page.read_text(), re.M)
    assert [line for line in messages if re.search(r"[^\]]\([^()]*\) \(", line)] == []


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=name)
def test_a_page_mounts_and_sweeps_what_it_exports(page: Path) -> None:
    text = "\n".join(commands(page))
    exported = set(re.findall(r"^nfsrdma server enable (/\S+)", text, re.M))
    if exported:
        for path in map(Path, re.findall(r"\bserver:(/\S*)", text)):
            assert {str(path), *map(str, path.parents)} & exported


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=name)
def test_nfsd_stops_before_its_module_is_replaced(page: Path) -> None:
    listed = commands(page)
    for before, command, after in zip(["", *listed], listed, [*listed[1:], ""], strict=False):
        if "server_personalities=" in command and command.startswith("nfsrdma module load"):
            assert before == "systemctl stop nfs-server"
            assert after == "systemctl start nfs-server"


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=name)
def test_the_client_loads_the_module_before_it_requests_a_personality(page: Path) -> None:
    loaded = False
    for command in commands(page):
        loaded |= bool(re.match(r"nfsrdma module load(?! --set server_)", command))
        if re.match(r"nfsrdma mount .*--(personality|optimistic|transport nfsrdma)", command):
            assert loaded, command


GLOSSARY = ROOT / "docs" / "glossary.md"
# general words, names of errors, signals, variables and products, and words in capitals of options
NO_TERMS = """
    ACTIVE CAP_NET_BIND_SERVICE CAP_SYS_PTRACE CONFIG_SUNRPC_XPRT_RDMA COUNT CPU CRC CSI CSV CUDA
    DB DESTROY_SESSION DIR DOWN E810 ECONNABORTED EIO ERESTARTSYS ETIMEDOUT FAST FUSE GB GET GPL
    GRANT HASH HEAD HTTP ID IN IO IP JSON KB LINK_UP MB MINOR MIT MPI NAME NFS NFSRDMA_CACHE
    NFSRDMA_STATE NICELI NTP NVIDIA OK PATH PID PNG POSIX_FADV_SEQUENTIAL PROGRAM READ READDIR
    READLINK README RFC RHEL RPC RTT SECURITY SERVER SIGCOMM SIGKILL SIGTERM SLES SUSE SVG SYMLINK
    TCP TLS UDP UNIT URL USE USENIX UTC VE VERSION WRITE XDG_RUNTIME_DIR XFS XID ZFS
"""


def terms() -> list[str]:
    """The terms of the glossary, as its rows have them."""
    return re.findall(r"^\| (?!term)(.+?) \| .+ \|$", GLOSSARY.read_text(), re.M)


def test_the_glossary_is_in_order() -> None:
    keys = [re.sub(r"[^a-z0-9]", "", term.lower()) for term in terms()]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


def test_abbreviations_are_in_the_glossary() -> None:
    users = [page for page in HAND_WRITTEN if page != GLOSSARY and "dev" not in page.parts]
    code = r"^```.*?^```|`[^`]*`|\]\([^)]*\)|<!--.*?-->"
    word = r"(?<![\w/.-])[A-Z][A-Z0-9]+(?:_[A-Z]+)*\b(?![\w/.]*\w/)"
    known = set(NO_TERMS.split()) | set(re.findall(r"[A-Z][A-Z0-9_]+", GLOSSARY.read_text()))
    unknown_words = {
        f"{name(page)}: {term}"
        for page in users
        for term in re.findall(word, re.sub(code, "", page.read_text(), flags=re.M | re.S))
        if term not in known
    }
    assert unknown_words == set()


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    plain = [re.sub(r"\]\([^)]*\)|[^\w\s-]", "", head.lower()) for head in heads]
    return {re.sub(r"\s", "-", head.strip()) for head in plain}


@pytest.mark.parametrize("page", [ROOT / "CHANGELOG.md", *HAND_WRITTEN], ids=name)
def test_headings_that_a_link_names_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", page.read_text())
    missing = [
        f"{target}#{anchor}"
        for target, anchor in links
        if anchor not in anchors((page.parent / target) if target else page)
    ]
    assert missing == []


def yaml_blocks(page: Path) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.M | re.S)


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=name)
def test_yaml_of_a_page_parses(page: Path) -> None:
    for text in yaml_blocks(page):
        assert all(document is not None for document in yaml.safe_load_all(text))


def test_manifests_mount_over_rdma_and_name_what_they_define() -> None:
    page = ROOT / "docs" / "how-to" / "kubernetes.md"
    documents = [each for text in yaml_blocks(page) for each in yaml.safe_load_all(text)]
    kinds = {each["kind"]: each for each in documents}
    options = {"nfsvers=4.2", "proto=rdma", "port=20049"}
    volume, storage, secret = (
        kinds[kind] for kind in ("PersistentVolume", "StorageClass", "Secret")
    )
    assert set(volume["spec"]["mountOptions"]) == options
    assert set(storage["mountOptions"]) == options
    assert set(secret["stringData"]["mountOptions"].split(",")) == options
    provisioner = {
        key.rpartition("-")[2]: value
        for key, value in storage["parameters"].items()
        if key.startswith("csi.storage.k8s.io/provisioner-secret-")
    }
    assert provisioner == {each: secret["metadata"][each] for each in ("name", "namespace")}
    claim = kinds["PersistentVolumeClaim"]["spec"]
    assert claim["volumeName"] == volume["metadata"]["name"]
    assert claim["storageClassName"] == volume["spec"]["storageClassName"]
    assert claim["resources"]["requests"]["storage"] == volume["spec"]["capacity"]["storage"]


def test_the_page_for_developers_has_the_test_as_it_is() -> None:
    file = (ROOT / "tests/lab/host/test_reads.py").read_text()
    assert file.count("\n") <= 30
    code = file.partition("\n")[2]
    assert f"```python\n{code}```\n" in (ROOT / "docs/dev/testing.md").read_text()
