# SPDX-License-Identifier: Apache-2.0
import os

from spack.package import *


class Tessera(CMakePackage):
    """Caching allocators for GPUs, NPUs and pinned host memory, composed from policies. C++20 headers."""

    # The checkout that this file lies in. A copy in another repository of packages names the address of the project.
    git = "file://" + os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 5))

    license("Apache-2.0")

    version("main", branch="main")
    version("0.1.0", tag="v0.1.0")

    variant("tool", default=False, description="Install tessera-replay, which runs recorded programs through allocators")

    depends_on("cxx", type="build")
    depends_on("cmake@3.24:", type="build")

    conflicts("%gcc@:11", msg="needs C++20 as g++ 12 has it")
    conflicts("%clang@:13", msg="needs C++20 as clang 14 has it")

    def cmake_args(self):
        return [
            self.define("TESSERA_BUILD_TESTS", False),
            self.define("TESSERA_BUILD_BENCH", False),
            self.define_from_variant("TESSERA_BUILD_EXAMPLES", "tool"),
        ]

    @property
    def build_targets(self):
        return ["tessera-replay"] if self.spec.satisfies("+tool") else []
