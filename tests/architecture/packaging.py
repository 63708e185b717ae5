# SPDX-License-Identifier: Apache-2.0
"""Runs the recipe for Conan or Spack with stand-ins for their modules, which call CMake as these tools do.

packaging.py conan|spack ROOT HERE VERSION WITH_TOOL CMAKE GENERATOR
"""

import fnmatch
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

NAME, ROOT, HERE, VERSION, WITH_TOOL, CMAKE, GENERATOR = sys.argv[1:]
ROOT, HERE, WITH_TOOL = pathlib.Path(ROOT).resolve(), pathlib.Path(HERE), WITH_TOOL == "1"
PACKAGES = HERE / "packages"


def cmake(*arguments):
    subprocess.run([CMAKE, *map(str, arguments)], check=True)


def expect(condition, text):
    if not condition:
        sys.exit(text)


def configure(*arguments):
    """Configures a project, which must know all options."""
    command = [CMAKE, "-G", GENERATOR, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    expect(done.returncode == 0, done.stdout)
    expect("not used by the project" not in done.stdout, f"an option is not one of the library's:\n{done.stdout}")


def build_tool(folder, target):
    """Puts an empty file where the build would put the tool, which takes minutes to compile."""
    targets = subprocess.run([CMAKE, "--build", folder, "--target", "help"], check=True, capture_output=True, text=True)
    expect(re.search(rf"(?m)(^|\s){target}(:|$)", targets.stdout), f"there is no target {target}")
    (folder / target).touch()
    (folder / (target + ".1")).touch()


def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made


def load(path):
    spec = importlib.util.spec_from_file_location("recipe", path)
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    return recipe


def copy(_, pattern, src, dst):
    # Other tests create and remove folders in the build folder meanwhile: os.walk passes over what is gone, and rglob does not.
    for folder, _, names in os.walk(src):
        for name in names:
            path = pathlib.Path(folder) / name
            relative = path.relative_to(src)
            if fnmatch.fnmatch(str(relative), pattern):
                (dst / relative).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, dst / relative)


class Members(types.SimpleNamespace):
    def get_safe(self, name):
        return getattr(self, name, None)

    def set_property(self, name, value):
        setattr(self, name, value)


class ConanFile:
    def __init__(self, folder, **members):
        self.__dict__.update(recipe_folder=str(folder), settings=Members(os="Linux"), cpp_info=Members(), **members)

    def run(self, command, env):
        subprocess.run(command, check=True)


class ConanToolchain:
    def __init__(self, recipe):
        self.recipe, self.cache_variables = recipe, {}

    def generate(self):
        self.recipe.variables = self.cache_variables


class ConanCMake:
    def __init__(self, recipe):
        self.recipe = recipe

    def configure(self):
        variables = [f"-D{name}={'ON' if value is True else 'OFF' if value is False else value}"
                     for name, value in self.recipe.variables.items()]
        configure("-S", self.recipe.source_folder, "-B", self.recipe.build_folder, *variables)

    def build(self, target=None):
        if target:
            build_tool(self.recipe.build_folder, target)
        else:
            cmake("--build", self.recipe.build_folder)

    def install(self):
        cmake("--install", self.recipe.build_folder, "--prefix", self.recipe.package_folder)


def run_conan(folder):
    standards = []
    module("conan", ConanFile=ConanFile)
    module("conan.tools")
    module("conan.tools.build", check_min_cppstd=lambda recipe, least: standards.append(least), can_run=lambda recipe: True)
    module("conan.tools.cmake", CMake=ConanCMake, CMakeToolchain=ConanToolchain, cmake_layout=lambda recipe: None)
    module("conan.tools.files", copy=copy, load=lambda recipe, path: pathlib.Path(path).read_text())

    recipe = load(folder / "conanfile.py").Tessera(folder)
    recipe.set_version()
    expect(recipe.version == VERSION, f"its version is {recipe.version}, not {VERSION}")
    expect(WITH_TOOL in recipe.options["with_tool"], f"with_tool may not be {WITH_TOOL}")
    recipe.options = Members(with_tool=WITH_TOOL)
    recipe.export_sources_folder = recipe.source_folder = HERE / "sources"
    recipe.build_folder, recipe.package_folder = HERE / "build", PACKAGES
    cleared = []
    recipe.info = Members(options=recipe.options, clear=lambda: cleared.append(True))
    for step in ("export_sources", "layout", "validate", "package_id", "generate", "build", "package", "package_info"):
        getattr(recipe, step)()
    expect(standards == [20], "it does not ask for C++20")
    expect(bool(cleared) != WITH_TOOL, "the headers have one package for all compilers, the tool one for each")
    expect(recipe.cpp_info.cmake_find_mode == "none", "Conan would write a package of CMake beside the installed one")
    if WITH_TOOL:
        return

    test = load(folder / "test_package" / "conanfile.py").TesseraTest(folder)
    test.tested_reference_str, required = f"tessera/{VERSION}", []
    test.requires = required.append
    test.source_folder, test.build_folder = folder / "test_package", HERE / "test"
    test.cpp = Members(build=Members(bindir=str(HERE / "test")))
    test.variables = {"CMAKE_PREFIX_PATH": ";".join(str(PACKAGES / at) for at in recipe.cpp_info.builddirs)}
    for step in ("requirements", "layout", "build", "test"):
        getattr(test, step)()
    expect(required == [test.tested_reference_str], "its test does not require the package")


class CMakePackage:
    def define(self, name, value):
        return f"-D{name}:BOOL={'ON' if value else 'OFF'}"

    def define_from_variant(self, name, variant):
        expect(variant in VARIANTS, f"it has no variant {variant}")
        return self.define(name, VARIANTS[variant])


VARIANTS = {}


def run_spack(folder):
    versions, licenses, requirements = {}, [], []
    module("spack")
    module("spack.package", CMakePackage=CMakePackage, license=licenses.append,
           version=lambda name, **at: versions.update({name: at}),
           variant=lambda name, default, description: VARIANTS.update({name: WITH_TOOL}),
           depends_on=lambda what, type: requirements.append(what), conflicts=lambda what, msg: None)
    package = load(folder / "packages" / "tessera" / "package.py").Tessera()
    package.spec = Members(satisfies=lambda text: WITH_TOOL and text == "+tool")
    expect(package.git == f"file://{ROOT}", f"it takes the sources from {package.git}")
    expect(versions.get(VERSION) == {"tag": f"v{VERSION}"}, f"it has no version {VERSION} with its tag")
    expect(licenses == ["Apache-2.0"], f"its license is {licenses}")
    expect("cmake@3.24:" in requirements and "cxx" in requirements, "it lacks CMake or a compiler")
    build = HERE / "build"
    configure("-S", ROOT, "-B", build, f"-DCMAKE_INSTALL_PREFIX={PACKAGES}", *package.cmake_args())
    for target in package.build_targets:
        build_tool(build, target)
    cmake("--build", build, "--target", "install")


{"conan": run_conan, "spack": run_spack}[NAME](ROOT / ".github" / "packaging" / NAME)
