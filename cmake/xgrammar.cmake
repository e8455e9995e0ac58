# xgrammar, which compiles grammars for src/grammar: its source distribution of PyPI, of which the
# core alone is built. It is fetched once into a cache of the user's, by tools/install_deps.sh
# (cmake -P cmake/xgrammar.cmake) or else by the first configuration; builds then need no network.
# FATHOM_CACHE, or XDG_CACHE_HOME, in the environment moves the cache.
set(XGRAMMAR_VERSION 0.2.8)
set(XGRAMMAR_SHA256 8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80)
set(XGRAMMAR_URL "https://files.pythonhosted.org/packages/03/0f/29f521535729be740779c2c98b630ef6607cf28be9b669895dd2b821ff63/xgrammar-${XGRAMMAR_VERSION}.tar.gz")

if(DEFINED ENV{FATHOM_CACHE})
  set(cache "$ENV{FATHOM_CACHE}")
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(cache "$ENV{XDG_CACHE_HOME}/fathom")
else()
  set(cache "$ENV{HOME}/.cache/fathom")
endif()
# The hash is in the name, so that what lies there is what was checked when it came.
string(SUBSTRING ${XGRAMMAR_SHA256} 0 12 hash)
set(XGRAMMAR_SOURCE "${cache}/xgrammar-${XGRAMMAR_VERSION}-${hash}")

if(NOT EXISTS "${XGRAMMAR_SOURCE}")
  message(STATUS "Fetching xgrammar ${XGRAMMAR_VERSION} into ${cache}")
  string(RANDOM LENGTH 12 name)
  set(own "${cache}/${name}")  # of two at once each has a folder, and the first one's stays
  file(DOWNLOAD "${XGRAMMAR_URL}" "${own}/archive" TLS_VERIFY ON TIMEOUT 300 STATUS status)
  if(NOT status MATCHES "^0;")
    file(REMOVE_RECURSE "${own}")
    message(FATAL_ERROR "xgrammar ${XGRAMMAR_VERSION} could not be fetched from PyPI (${status}). Without a "
                        "network, unpack its source distribution as ${XGRAMMAR_SOURCE}")
  endif()
  file(SHA256 "${own}/archive" found)
  if(NOT found STREQUAL XGRAMMAR_SHA256)
    file(REMOVE_RECURSE "${own}")
    message(FATAL_ERROR "${XGRAMMAR_URL} has the SHA-256 ${found}, not ${XGRAMMAR_SHA256}")
  endif()
  file(ARCHIVE_EXTRACT INPUT "${own}/archive" DESTINATION "${own}")
  file(RENAME "${own}/xgrammar-${XGRAMMAR_VERSION}" "${XGRAMMAR_SOURCE}" RESULT renamed)
  file(REMOVE_RECURSE "${own}")
  if(NOT EXISTS "${XGRAMMAR_SOURCE}")
    message(FATAL_ERROR "xgrammar's source could not be put at ${XGRAMMAR_SOURCE}: ${renamed}")
  endif()
endif()
if(CMAKE_SCRIPT_MODE_FILE)
  return()
endif()

# The core: neither its Python bindings nor its own tests' helpers. Its warnings are not ours.
file(GLOB sources "${XGRAMMAR_SOURCE}/cpp/*.cc" "${XGRAMMAR_SOURCE}/cpp/converter_ext/*.cc"
     "${XGRAMMAR_SOURCE}/cpp/support/*.cc")
# A file with `from` made `to`, wherever it stands in it.
function(xgrammar_mend name from to)
  set(source "${XGRAMMAR_SOURCE}/cpp/${name}.cc")
  set(own "${CMAKE_CURRENT_BINARY_DIR}/xgrammar/${name}.cc")
  if(own IN_LIST sources)
    set(source "${own}.mended")  # once more
  else()
    list(REMOVE_ITEM sources "${source}")
    list(APPEND sources "${own}")
  endif()
  file(READ "${source}" code)
  if(NOT code MATCHES "grammar/grammar_steps.h")
    string(PREPEND code "#include \"grammar/grammar_steps.h\"\n")
  endif()
  string(REPLACE "${from}" "${to}" mended "${code}")
  if(mended STREQUAL code)
    message(FATAL_ERROR "xgrammar ${XGRAMMAR_VERSION} has no ${from} in ${name}.cc")
  endif()
  file(WRITE "${own}.mended" "${mended}")
  set(sources "${sources}" PARENT_SCOPE)
endfunction()
# A statement of which it does many for a grammar, and how many steps each is.
macro(xgrammar_steps name steps statement)
  xgrammar_mend(${name} "${statement}" "fathom::CountSteps(${steps}); ${statement}")
endmacro()
include(cmake/xgrammar_mends.cmake)
foreach(name earley_parser grammar_compiler grammar_builder grammar_functor grammar_matcher grammar_parser fsm fsm_builder json_schema_converter
        regex_converter)
  configure_file("${CMAKE_CURRENT_BINARY_DIR}/xgrammar/${name}.cc.mended"
                 "${CMAKE_CURRENT_BINARY_DIR}/xgrammar/${name}.cc" COPYONLY)
endforeach()
add_library(xgrammar STATIC ${sources})
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 CXX_CLANG_TIDY "")
target_compile_options(xgrammar PRIVATE -w)
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
                           XGRAMMAR_LOG_CUSTOMIZE=1)
target_include_directories(xgrammar SYSTEM PUBLIC "${XGRAMMAR_SOURCE}/include" "${XGRAMMAR_SOURCE}/3rdparty/dlpack/include"
                           PRIVATE "${XGRAMMAR_SOURCE}/3rdparty/picojson" "${XGRAMMAR_SOURCE}/cpp"
                           "${CMAKE_SOURCE_DIR}/src")
target_link_libraries(xgrammar PUBLIC Threads::Threads)
