# Makes Debian packages with cpack: libtessera-dev has the headers, the pages and the examples, tessera-replay the tool if it is
# built.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR tessera)
# Debian asks for a name and an address here. Whoever publishes packages sets them.
set(CPACK_PACKAGE_CONTACT "The tessera maintainers" CACHE STRING "Maintainer of the packages, as in: Name <address>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL dev tool)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/only_built.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/documents.cmake)
set(CPACK_TESSERA_TOOL ${PROJECT_BINARY_DIR}/tessera-replay)
set(CPACK_TESSERA_SOURCE ${PROJECT_SOURCE_DIR})
set(CPACK_TESSERA_COPYRIGHT ${CMAKE_CURRENT_LIST_DIR}/copyright)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libtessera-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DEV_PACKAGE_SUGGESTS tessera-replay)
set(CPACK_DEBIAN_DEV_DESCRIPTION "tessera assembles caching allocators for GPUs, NPUs and pinned host
memory. A program combines eight policies with a provider of memory.
.
This package has the C++20 headers, files for CMake and pkg-config, the
guides and the examples.")
set(CPACK_DEBIAN_TOOL_PACKAGE_NAME tessera-replay)
set(CPACK_DEBIAN_TOOL_PACKAGE_SECTION devel)
set(CPACK_DEBIAN_TOOL_PACKAGE_SUGGESTS libtessera-dev)
set(CPACK_DEBIAN_TOOL_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TOOL_DESCRIPTION "The tool compares how much device memory allocators need for a
recorded program, explains why memory ran out, and searches for better
settings. It reads its own format, snapshots of PyTorch and logs of RMM.
It needs no GPU.")
include(CPack)
