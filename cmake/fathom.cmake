# Compiler settings, and the two functions that every folder uses.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# A bundle has its libraries beside its binaries (tools/make_bundle.sh).
set(CMAKE_BUILD_RPATH "$ORIGIN/../lib")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -O2 and no fast-math: results must not depend on how the compiler reassociates.
# -ffp-contract=off: a fused multiply-add is written where it is meant, so that the reference table's
# bits do not depend on the target.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
# Op arguments have defaults: leaving them out is meant.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-missing-field-initializers;-Werror=return-type;-Werror=unused-result;-ffp-contract=off>")

find_program(CCACHE ccache)
if(CCACHE)
  # Paths below the checkout are made relative, so that another clone finds what this one compiled
  # (and its debug information may name this one's folder).
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
endif()
if(FATHOM_SANITIZE)
  add_compile_options(-fsanitize=${FATHOM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${FATHOM_SANITIZE})
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
set(TEST_TIMEOUT_S 300)
if(FATHOM_SANITIZE)
  set(TEST_TIMEOUT_S 3000)
endif()
if(FATHOM_TESTS)
  find_package(GTest REQUIRED)
  enable_testing()
endif()

# fathom_library(NAME [KERNELS] [SOURCES a.cc ...] [DEPENDS base ...] [LIBRARIES external ...])
# The library fathom_NAME of src/NAME; DEPENDS are folders, checked against the layering.
# KERNELS: with FATHOM_SHARED_KERNELS it is a shared library, to which each program brings what it depends on.
function(fathom_library name)
  cmake_parse_arguments(ARG "KERNELS" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  list(TRANSFORM ARG_DEPENDS PREPEND fathom_)
  if(ARG_KERNELS AND FATHOM_SHARED_KERNELS)
    add_library(fathom_${name} SHARED ${ARG_SOURCES})
    target_include_directories(fathom_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(fathom_${name} PRIVATE fmt::fmt PUBLIC ${ARG_LIBRARIES} INTERFACE ${ARG_DEPENDS})
  elseif(ARG_SOURCES)
    add_library(fathom_${name} STATIC ${ARG_SOURCES})
    target_include_directories(fathom_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(fathom_${name} PUBLIC ${ARG_DEPENDS} ${ARG_LIBRARIES})
  else()
    add_library(fathom_${name} INTERFACE)
    target_include_directories(fathom_${name} INTERFACE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(fathom_${name} INTERFACE ${ARG_DEPENDS} ${ARG_LIBRARIES})
  endif()
  if(ARG_KERNELS)
    set_target_properties(fathom_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()
endfunction()

# fathom_test(NAME SOURCES a_test.cc ... [DEPENDS folder ...] [LIBRARIES external ...])
# A GoogleTest binary, run by ctest from the project's root.
function(fathom_test name)
  if(NOT FATHOM_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  list(TRANSFORM ARG_DEPENDS PREPEND fathom_)
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} ${ARG_LIBRARIES} GTest::gtest_main GTest::gtest)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  # Far beyond what any takes; a test that hangs must not hang the rest.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${TEST_TIMEOUT_S})
endfunction()
