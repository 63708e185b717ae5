// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The library's version, for the preprocessor. CMake reads it from here. The inline namespace of all names has the major and
/// minor version, so two versions in one program are different types and functions.
///
///     #include <tessera/version.hpp>
///     #if TESSERA_VERSION < 100
///     #error "tessera 0.1 or newer is needed"
///     #endif
///     static_assert(TESSERA_VERSION_MAJOR < 100 && sizeof TESSERA_VERSION_STRING > 1);
// NOLINTBEGIN(modernize-macro-to-enum): #if cannot read an enum
#define TESSERA_VERSION_MAJOR 0
#define TESSERA_VERSION_MINOR 1
#define TESSERA_VERSION_PATCH 0
// NOLINTEND(modernize-macro-to-enum)
/// 10,000 for each major version, 100 for each minor one, and the patch.
#define TESSERA_VERSION (TESSERA_VERSION_MAJOR * 10000 + TESSERA_VERSION_MINOR * 100 + TESSERA_VERSION_PATCH)
/// The version as text, "major.minor.patch".
#define TESSERA_VERSION_STRING \
  TESSERA_DETAIL_VERSION_TEXT(TESSERA_VERSION_MAJOR, TESSERA_VERSION_MINOR, TESSERA_VERSION_PATCH)

// Two macros, because # does not expand its argument.
#define TESSERA_DETAIL_VERSION_TEXT(major, minor, patch) TESSERA_DETAIL_DOTTED_TEXT(major, minor, patch)
#define TESSERA_DETAIL_DOTTED_TEXT(major, minor, patch) #major "." #minor "." #patch
