# Builds for Windows with MinGW-w64 of Debian, and runs the programs with Wine:
#   cmake -S . -B build-windows -DCMAKE_TOOLCHAIN_FILE=.ci/windows.cmake
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc-posix)  # of GoogleTest
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_CROSSCOMPILING_EMULATOR wine)
# Programs are linked statically, so each is one file. GNU's linker needs 8 minutes for the tests; lld, which clang calls, a second.
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_CXX_LINKER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/link_for_windows)
set(CMAKE_FIND_ROOT_PATH /usr/x86_64-w64-mingw32)
include(${CMAKE_CURRENT_LIST_DIR}/cross.cmake)
