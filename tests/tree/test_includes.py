#!/usr/bin/python3
"""The tree keeps its order: includes point down, each outside library has its place, the root holds
what it should, and no test program is left out of the list of tests."""

import re
import subprocess
import unittest

from tree import SOURCE

# The longest matching start of a path counts.
LEVELS = {
    "shared/": 0,
    "proto/": 1,
    "daemon/plan/": 1,
    "daemon/device/": 1,
    "daemon/log/": 1,
    "daemon/keyfile.h": 1,
    "daemon/tuning.h": 2,
    "daemon/config.h": 2,  # what may be set, for everybody above who asks
    "daemon/transport/": 2,
    "daemon/exec/": 3,
    "daemon/comm/": 4,
    "daemon/server/": 5,
    "daemon/": 6,
}
# A header of another library: who may include it.
PLACES = {
    r"uv\.h": r"daemon/server/|daemon/main\.c",
    r"protobuf-c/|.*\.pb-c\.h": r"proto/",
    r"cuda.*": r"daemon/device/cuda",
    r"ucp/|uct/|ucs/": r"daemon/transport/ucx",
    r"sodium\.h": r"daemon/",
    r"ini\.h": r"daemon/keyfile\.c",
    r"jansson\.h": r"client/ctl/|client/perf/",
}
# The driver's own names, as in cuMemAlloc_v2 and CUdeviceptr, and who may say them.
LIBCUDA = re.compile(r"\b(?:cu[A-Z]\w+|CU[a-z]\w+|CU_[A-Z]\w+|CUDA_(?:SUCCESS|LIST|ERROR_\w+))\b")
CUDA_PLACES = r"shared/cuda\.|daemon/device/cuda|client/gpu"
ROOT = set("meson.build daemon client proto shared tests deploy README.md LICENSE".split())
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)


def sources(*folders):
    for folder in folders:
        for path in sorted((SOURCE / folder).rglob("*.[ch]")):
            yield path.relative_to(SOURCE).as_posix(), path.read_text()


def includes(*folders):
    for path, text in sources(*folders):
        for kind, header in INCLUDE.findall(text):
            yield path, kind, header


def level(path):
    start = max((start for start in LEVELS if path.startswith(start)), key=len, default=None)
    return LEVELS.get(start)


class Includes(unittest.TestCase):
    def test_ours_are_written_from_the_root(self):
        for path, kind, header in includes("shared", "proto", "daemon", "client"):
            if kind == '"' and not header.endswith(".pb-c.h"):
                self.assertTrue((SOURCE / header).is_file(), f"{path} includes {header}")

    def test_of_the_daemon_point_down(self):
        for path, kind, header in includes("shared", "proto", "daemon"):
            if kind != '"':
                continue
            self.assertIsNotNone(level(header), f"{path} includes {header}")
            same_folder = path.rpartition("/")[0] == header.rpartition("/")[0]
            self.assertTrue(
                same_folder or level(header) < level(path),
                f"{path} (level {level(path)}) includes {header} (level {level(header)})",
            )

    def test_of_the_client_see_shared_and_proto_only(self):
        for path, kind, header in includes("client"):
            # rucclctl shows plans by making them: numbers in, steps out, and nothing of a daemon
            plans = "|daemon/(plan/|tuning)" if path.startswith("client/ctl/plan") else ""
            if kind == '"':
                self.assertRegex(header, rf"^(client/|shared/|proto/{plans})", f"{path}: {header}")

    def test_of_the_plans_see_shared_only(self):
        for path, kind, header in includes("daemon/plan"):
            if kind == '"':
                self.assertRegex(header, r"^(daemon/plan|shared)/", f"{path} includes {header}")

    def test_of_other_libraries_stay_in_their_place(self):
        for path, _, header in includes("shared", "proto", "daemon", "client"):
            for pattern, place in PLACES.items():
                if re.fullmatch(pattern + (".*" if pattern.endswith("/") else ""), header):
                    self.assertRegex(path, rf"^({place})", f"{path} includes {header}")

    def test_names_of_the_driver_are_said_where_gpus_are_dealt_with(self):
        self.assertEqual(
            LIBCUDA.findall("cuMemAlloc CUdeviceptr CU_EVENT_X CUDA_ERROR_X cut cuda_load CUDA_DEV"),
            ["cuMemAlloc", "CUdeviceptr", "CU_EVENT_X", "CUDA_ERROR_X"],
        )
        comment = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
        for path, text in sources("shared", "proto", "daemon", "client"):
            if not re.match(CUDA_PLACES, path):
                self.assertEqual(LIBCUDA.findall(comment.sub("", text)), [], path)


class Tests(unittest.TestCase):
    def test_are_all_run(self):
        programs = re.compile(r"(test|fuzz)_.*\.(c|py)")
        files = [p for p in (SOURCE / "tests").rglob("*") if programs.fullmatch(p.name)]
        self.assertGreater(len(files), 40)
        for path in files:
            build = (path.parent / "meson.build").read_text()
            name = path.stem.partition("_")[2]
            self.assertRegex(
                build, rf"'({name}|{path.name})'", f"{path.parent.name} does not run {path.name}"
            )


class Root(unittest.TestCase):
    def test_holds_what_it_should(self):
        listed = subprocess.run(
            ["git", "-C", SOURCE, "ls-files", "--cached", "--others", "--exclude-standard"],
            capture_output=True, text=True,
        )  # fmt: skip
        if listed.returncode:
            self.skipTest("this is no git repository")
        entries = {line.partition("/")[0] for line in listed.stdout.splitlines()}
        self.assertEqual({entry for entry in entries if entry[0] != "."}, ROOT)


if __name__ == "__main__":
    unittest.main()
