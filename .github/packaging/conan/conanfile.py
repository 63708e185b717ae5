# SPDX-License-Identifier: Apache-2.0
"""Conan 2 recipe: conan create .github/packaging/conan. It takes the sources from the checkout that it lies in."""

import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class Tessera(ConanFile):
    name = "tessera"
    description = "Caching allocators composed from policies, as C++20 headers"
    license = "Apache-2.0"
    topics = ("allocator", "gpu", "npu", "memory-pool", "header-only")
    settings = "os", "arch", "compiler", "build_type"
    options = {"with_tool": [True, False]}
    default_options = {"with_tool": False}
    no_copy_source = True

    @property
    def _checkout(self):
        return os.path.abspath(os.path.join(self.recipe_folder, "..", "..", ".."))

    def set_version(self):
        text = load(self, os.path.join(self._checkout, "include", "tessera", "version.hpp"))
        self.version = ".".join(re.findall(r"#define TESSERA_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)\n", text))

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "include/*", "examples/*", "tests/architecture/linux_only.cmake",
                        ".github/packaging/*.cmake"):
            copy(self, pattern, src=self._checkout, dst=self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def validate(self):
        check_min_cppstd(self, 20)

    def package_id(self):
        if not self.info.options.with_tool:
            self.info.clear()

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["TESSERA_BUILD_TESTS"] = False
        toolchain.cache_variables["TESSERA_BUILD_BENCH"] = False
        toolchain.cache_variables["TESSERA_BUILD_EXAMPLES"] = bool(self.options.with_tool)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        if self.options.with_tool:
            cmake.build(target="tessera-replay")

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        # The installed tessera-config.cmake is found; Conan writes none.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "tessera")]
        self.cpp_info.set_property("pkg_config_name", "tessera")
        self.cpp_info.bindirs = ["bin"] if self.options.with_tool else []
        self.cpp_info.libdirs = []
        if self.settings.get_safe("os") == "Linux":
            self.cpp_info.system_libs = ["pthread"]
