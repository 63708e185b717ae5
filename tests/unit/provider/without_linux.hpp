// SPDX-License-Identifier: Apache-2.0
// Comes before the tests of host_pinned, and hides what macOS lacks, so that host_pinned makes the calls of POSIX alone. The
// headers of the system and of the standard library come first. Another one that declares a name below does not compile.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#if __has_include(<gtest/gtest.h>)
#include <gtest/gtest.h>
#endif

#include "host_process.hpp"

#undef __linux__
#undef __linux
#undef __gnu_linux__
#undef linux
#undef F_ADD_SEALS
#undef F_GET_SEALS
#undef MADV_HUGEPAGE
#undef MADV_POPULATE_READ
#undef MADV_POPULATE_WRITE
#undef MAP_HUGETLB
#undef MAP_POPULATE
#undef MFD_ALLOW_SEALING
#undef MFD_CLOEXEC
#undef MFD_HUGETLB
#undef MSG_NOSIGNAL
#undef O_TMPFILE
#undef SO_PEERCRED
#undef SOCK_CLOEXEC
#undef SOCK_NONBLOCK
#pragma GCC poison accept4 eventfd fallocate get_mempolicy getrandom gettid mbind memfd_create mlock2 mremap pipe2 posix_fallocate
#pragma GCC poison prctl sched_getaffinity sched_getcpu syscall ucred
