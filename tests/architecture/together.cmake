# Compiles all headers in one source, as each C++ standard, with more warnings than the tests have, and without exceptions and
# run-time type information. The order of the headers is shuffled by a seed; macros that other libraries define come first. The
# source instantiates what unit/bare.cpp uses.
#   cmake -D ROOT=checkout -D COMPILER=c++ -D SCRATCH=folder [-D SEED=1] [-D FLAGS=-stdlib=libc++] -P together.cmake
cmake_minimum_required(VERSION 3.24)
if(NOT DEFINED SEED)
  set(SEED 1)
endif()
set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast -Wnon-virtual-dtor
             -Woverloaded-virtual -Wdouble-promotion -Wundef -Wextra-semi -Wcast-align -Wcast-qual -Wformat=2 -Wredundant-decls
             -Wunused -Wnull-dereference -Werror)
# Without -Wuseless-cast: a cast from std::uint64_t to std::size_t is needed on other machines.
set(warnings_GNU -Wduplicated-cond -Wduplicated-branches -Wlogical-op -Wcast-align=strict)
set(warnings_Clang -Wimplicit-fallthrough -Wthread-safety -Wheader-hygiene -Wnewline-eof -Wshadow-all -Wno-shadow-field-in-constructor)
# Macros that other libraries define, and users on the command line. Without those that are named like members of the standard
# library, such as move of curses: beside them, no C++ compiles.
set(macros
    # Windows: minwindef.h, winnt.h, wingdi.h, winuser.h, rpcndr.h, dlgs.h, ...
    near far NEAR FAR IN OUT OPTIONAL CONST VOID ERROR DELETE TRUE FALSE STRICT THIS PURE UNALIGNED INFINITE IGNORE NO_ERROR
    interface small hyper pascal cdecl CALLBACK WINAPI OPAQUE TRANSPARENT ABSOLUTE RELATIVE ALTERNATE WINDING DIFFERENCE
    PASSTHROUGH CreateWindow GetObject GetMessage SendMessage DrawText LoadImage LoadLibrary CreateFile CreateEvent CreateMutex
    CreateProcess CopyFile MoveFile DeleteFile CreateDirectory GetClassName GetUserName GetProp SetProp FindText ReplaceText
    StartDoc PlaySound AddJob ReportEvent OpenEvent MessageBox rad1 chx1 psh1 edt1 lst1 cmb1 stc1 ico1 frm1 scr1 ctl1 grp1
    s_addr s_host s_net s_imp h_addr INTERFACE
    # macOS, Objective-C, the BSDs
    nil Nil YES NO PAGE_SIZE PAGE_MASK PAGE_SHIFT BLOCK_SIZE NBBY _C _L _N _P _S _U _X _B
    # X11
    None Bool Status True False Success Always Complex Unsorted YSorted YXSorted YXBanded Convex Nonconvex Above Below Expose
    KeyPress KeyRelease ButtonPress FocusIn FocusOut CurrentTime ParentRelative CopyFromParent PointerRoot AnyKey NoSymbol
    WhenMapped NotUseful Opposite EvenOddRule WindingRule AllPlanes Nonlinear CursorShape TileShape FontChange LockMask
    ControlMask BadRequest BadValue BadWindow BadMatch BadAlloc BadAccess NoValue AllValues
    # Arduino
    HIGH LOW INPUT OUTPUT INPUT_PULLUP PI HALF_PI TWO_PI DEG_TO_RAD EULER SERIAL DISPLAY LSBFIRST MSBFIRST CHANGE FALLING RISING
    DEFAULT EXTERNAL INTERNAL B0 B1 B10 B11 B100 B101 F_CPU A0 A1 SS SDA SCL
    # Qt
    signals slots emit forever
    # glibc, compilers, <complex.h>, <math.h>, <termios.h>
    linux unix i386 sun sparc mips vax hpux arm m68k I complex imaginary st_atime st_mtime st_ctime ECHO TAB0 CR0 NL0 BS0 FF0
    VT0 NODEV si_value DOMAIN OVERFLOW UNDERFLOW SING TLOSS PLOSS HUGE LITTLE_ENDIAN BIG_ENDIAN BYTE_ORDER
    # curses
    ERR COLOR_RED COLOR_BLACK KEY_DOWN KEY_UP A_BOLD A_NORMAL
    # Ruby
    snprintf vsnprintf setproctitle Qnil Qtrue Qfalse Qundef T_FLOAT T_DATA T_NONE T_STRING
    # Unreal
    INDEX_NONE FORCEINLINE OVERRIDE ABSTRACT RESTRICT CONSTEXPR SMALL_NUMBER BIG_NUMBER DELTA STATS
    # glog, and command lines
    INFO WARNING FATAL DEBUG RELEASE TEST VERSION PACKAGE NAME)
set(macros_of_arguments
    # several libraries
    min max Min Max MIN MAX ABS SIGN CLAMP SWAP assert
    # macOS: AssertMacros.h
    check check_noerr check_string require require_action require_noerr require_quiet require_string verify verify_action
    verify_noerr ncheck nrequire nverify debug_string round_page trunc_page
    # Unreal
    checkf verifyf ensure ensureMsgf TEXT LIKELY UNLIKELY STAT UE_LOG unimplemented checkCode checkSlow ARRAY_COUNT
    # PyTorch and glog; test frameworks
    CHECK LOG VLOG DLOG DCHECK PCHECK CHECK_EQ CHECK_NOTNULL LOG_IF REQUIRE SECTION FAIL CAPTURE GIVEN WHEN THEN SUCCEED
    # Windows
    GetCurrentTime Yield CopyMemory MoveMemory FillMemory ZeroMemory GetFreeSpace UnlockResource GlobalDiscard RGB MAKEWORD
    LOWORD HIWORD GetNextWindow ExitWindows IsMinimized SUCCEEDED FAILED
    # glibc, the BSDs, Linux
    major minor makedev roundup howmany powerof2 setbit clrbit isset isclr btodb nitems ALIGN alloca likely unlikely container_of
    BIT ARRAY_SIZE isalnum isspace isdigit isalpha tolower toupper isprint isnan isinf finite signbit
    # Arduino
    abs round sq constrain radians degrees interrupts noInterrupts lowByte highByte bit bitRead bitSet bitClear bitWrite F word
    # Qt
    foreach SIGNAL SLOT
    # curses
    refresh echo box border scroll touchline attron standout getch getstr instr hline vline inch addch addstr insch delch unctrl
    getyx scrl winch nl raw
    # Ruby, Godot
    Check_Type NUM2INT ALLOC ALLOC_N REALLOC_N MEMCPY MEMCMP memnew memdelete)

file(GLOB_RECURSE headers RELATIVE ${ROOT}/include ${ROOT}/include/tessera/*.hpp)
set(of_tool ${ROOT}/examples/tessera_replay/include)
file(GLOB_RECURSE tool_headers RELATIVE ${of_tool} ${of_tool}/*.hpp)
list(LENGTH headers count)
if(count EQUAL 0)
  message(FATAL_ERROR "no headers in ${ROOT}/include")
endif()
set(standard "")
foreach(header IN LISTS headers tool_headers)
  # A header for another library includes that library too, where it is found. No macro comes before it.
  set(path ${ROOT}/include/${header})
  if(header IN_LIST tool_headers)
    set(path ${of_tool}/${header})
  endif()
  file(STRINGS ${path} other_library REGEX "^#if __has_include\\(<.*>\\)$")
  if(NOT other_library)
    file(STRINGS ${path} lines REGEX "^#include <[^t]|^#include <t[^e]")
    list(APPEND standard ${lines})
  endif()
  foreach(line IN LISTS other_library)
    string(REGEX REPLACE "^#if __has_include\\((.*)\\)$" "${line}\n#include \\1\n#endif" line "${line}")
    list(APPEND standard "${line}")
  endforeach()
endforeach()
list(REMOVE_DUPLICATES standard)
list(JOIN standard "\n" standard)
list(APPEND headers ${tool_headers})
list(LENGTH headers count)
string(REPLACE "#include <stacktrace>" "#if __has_include(<stacktrace>)\n#include <stacktrace>\n#endif" standard "${standard}")
set(poison "")
set(cure "")
foreach(macro IN LISTS macros macros_of_arguments)
  set(arguments "")
  if(macro IN_LIST macros_of_arguments)
    set(arguments "(...)")
  endif()
  string(APPEND poison "#undef ${macro}\n#define ${macro}${arguments} + is a macro of another library +\n")
  string(APPEND cure "#undef ${macro}\n")
endforeach()

# Writes a source that includes all headers in a shuffled order. Order 0 has no macros.
function(write_source source order)
  set(shuffled "")
  foreach(header IN LISTS headers)
    string(MD5 key "${SEED} ${order} ${header}")
    list(APPEND shuffled "${key}#include <${header}>")
  endforeach()
  list(SORT shuffled)
  list(TRANSFORM shuffled REPLACE "^[0-9a-f]+" "")
  list(JOIN shuffled "\n" shuffled)
  if(order EQUAL 0)
    file(WRITE ${source} "${shuffled}\n#include \"${ROOT}/tests/unit/bare.cpp\"\n")
  else()
    file(WRITE ${source} "${standard}\n${poison}${shuffled}\n${cure}#include \"${ROOT}/tests/unit/bare.cpp\"\n")
  endif()
endfunction()

file(WRITE ${SCRATCH}/every_header.hpp "// all headers are already included\n")
set(family GNU)
if(COMPILER MATCHES "clang")
  set(family Clang)
endif()
set(order 0)
foreach(way IN ITEMS -std=c++20 "-std=c++2b -fno-exceptions -fno-rtti" -std=gnu++2b)
  separate_arguments(flags UNIX_COMMAND "${way}")
  set(source ${SCRATCH}/order_${order}.cpp)
  write_source(${source} ${order})
  execute_process(COMMAND ${COMPILER} ${flags} ${FLAGS} ${warnings} ${warnings_${family}} -I ${ROOT}/include -I ${of_tool} -I ${SCRATCH}
                          -fsyntax-only ${source}
                  RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${way}, order ${order} of seed ${SEED}:\n${out}")
  endif()
  message(STATUS "${way}: ${count} headers in order ${order} of seed ${SEED}")
  math(EXPR order "${order} + 1")
endforeach()
