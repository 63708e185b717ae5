# An overlay port, which takes the sources from the checkout that it lies in. A copy in a registry takes them from a release:
# it calls vcpkg_from_git with the address of the repository and the tag, and removes this line.
cmake_path(ABSOLUTE_PATH CMAKE_CURRENT_LIST_DIR NORMALIZE OUTPUT_VARIABLE SOURCE_PATH)
cmake_path(GET SOURCE_PATH PARENT_PATH SOURCE_PATH)  # packaging
cmake_path(GET SOURCE_PATH PARENT_PATH SOURCE_PATH)  # .github
cmake_path(GET SOURCE_PATH PARENT_PATH SOURCE_PATH)

set(VCPKG_BUILD_TYPE release)  # headers have no debug version, and the tool needs none
vcpkg_check_features(OUT_FEATURE_OPTIONS options FEATURES tool TESSERA_BUILD_EXAMPLES)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS -DTESSERA_BUILD_TESTS=OFF -DTESSERA_BUILD_BENCH=OFF ${options})
if("tool" IN_LIST FEATURES)
  vcpkg_cmake_build(TARGET tessera-replay)
endif()
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/tessera)
vcpkg_fixup_pkgconfig()
if("tool" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES tessera-replay AUTO_CLEAN)
endif()
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
