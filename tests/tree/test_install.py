#!/usr/bin/python3
"""What is installed is complete, and works from where it lies."""

import json
import pathlib
import re
import shlex
import tempfile
import unittest

from tree import BUILD, SOURCE, Daemon, environment, run

WANTED = """
    bin/ruccl-perf bin/rucclctl sbin/ruccld
    include/ruccl.h lib/libruccl.so lib/libruccl.so.0 lib/libruccl.so.VERSION lib/pkgconfig/ruccl.pc
    systemd/system/ruccld.service systemd/system/ruccld.socket sysusers.d/ruccl.conf
    etc/ruccl/ruccld.conf etc/ruccl/tuning.conf
    man1/ruccl-perf.1 man1/rucclctl.1 man3/ruccl.3 man5/ruccl-tuning.5
    man5/ruccld.conf.5 man7/ruccl.7 man8/ruccld.8
""".split()


def options():
    listed = json.loads(run("meson", "introspect", "--buildoptions", BUILD))
    return {option["name"]: option["value"] for option in listed}


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="ruccl-")
        cls.addClassCleanup(directory.cleanup)
        cls.root = pathlib.Path(directory.name)
        run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", cls.root)
        option = options()
        cls.prefix = cls.root / option["prefix"].lstrip("/")
        cls.lib = cls.prefix / option["libdir"]
        cls.version = json.loads(run("meson", "introspect", "--projectinfo", BUILD))["version"]
        cls.files = [path for path in cls.root.rglob("*") if not path.is_dir()]
        cls.python = next(path for path in cls.files if path.match("ruccl/__init__.py")).parents[1]
        cls.env = environment(
            LD_LIBRARY_PATH=cls.lib, PYTHONPATH=cls.python, PYTHONDONTWRITEBYTECODE=1,
            PKG_CONFIG_PATH=cls.lib / "pkgconfig", PKG_CONFIG_SYSROOT_DIR=cls.root,
        )  # fmt: skip

    def test_files_are_those_that_are_wanted(self):
        libdir = self.lib.relative_to(self.prefix).as_posix()
        found = {path.relative_to(self.root).as_posix() for path in self.files}
        found -= {path for path in found if "/ruccl/" in path and path.endswith(".py")}
        wanted = {name.replace("VERSION", self.version) for name in WANTED}
        wanted = {re.sub(r"^lib/", f"{libdir}/", name) for name in wanted}
        self.assertEqual(len(found), len(wanted), sorted(found))
        for name in wanted:
            self.assertTrue(any(path.endswith("/" + name) or path == name for path in found), name)

    def test_python_package_is_whole(self):
        package = SOURCE / "client/python/ruccl"
        self.assertEqual(
            sorted(path.name for path in (self.python / "ruccl").glob("*.py")),
            sorted(path.name for path in package.glob("*.py")),
        )

    def test_programs_and_unit_agree_on_places(self):
        unit = next(path for path in self.files if path.name == "ruccld.service").read_text()
        program, argument, path = re.search(r"^ExecStart=(.*)$", unit, re.M)[1].split()
        self.assertTrue((self.root / program.lstrip("/")).is_file(), program)
        self.assertEqual(argument, "--config")
        self.assertTrue((self.root / path.lstrip("/")).is_file(), path)

    def test_library_carries_its_name_and_no_path(self):
        dynamic = run("readelf", "-d", self.lib / "libruccl.so.0")
        self.assertIn("[libruccl.so.0]", dynamic)
        self.assertNotRegex(dynamic, "RPATH|RUNPATH")

    def test_program_builds_and_runs_against_it(self):
        flags = shlex.split(run("pkg-config", "--cflags", "--libs", "ruccl", env=self.env))
        program = self.root / "all_reduce"
        source = SOURCE / "deploy/examples/all_reduce.c"
        run("cc", "-Wall", "-Wextra", "-Werror", "-std=c11", "-D_GNU_SOURCE", source, "-o", program,
            *flags)  # fmt: skip
        with Daemon(self.prefix / "sbin/ruccld") as daemon:
            printed = run(program, "2", env=self.env | {"RUCCL_SOCKET": str(daemon.socket)})
        self.assertEqual(sorted(printed.splitlines()), ["rank 0 of 2: 3", "rank 1 of 2: 3"])

    def test_header_needs_nothing_but_c99(self):
        run("cc", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-std=c99", "-pedantic",
            "-x", "c", self.prefix / "include/ruccl.h")  # fmt: skip

    def test_python_package_finds_the_library(self):
        with Daemon(self.prefix / "sbin/ruccld") as daemon:
            env = self.env | {"RUCCL_SOCKET": str(daemon.socket)}
            example = SOURCE / "deploy/examples/all_reduce.py"
            printed = run("/usr/bin/python3", example, "2", env=env)
        self.assertEqual(sorted(printed.splitlines()), ["rank 0 of 2: 3", "rank 1 of 2: 3"])

    def test_measuring_program_finds_the_daemon(self):
        run(self.prefix / "bin/ruccl-perf", "barrier", "--ranks", "2", "--iters", "5", env=self.env)


if __name__ == "__main__":
    unittest.main()
