# Hashes of the sources that `fathom` is made of: those of a CPU, so that its results say what they
# are results of, and all, so that hosts can tell whether they run the same. Comments and white
# space may change without new results.
#     cmake -P cmake/source_hashes.cmake                 prints that of a CPU's
#     cmake -DOF=all -P cmake/source_hashes.cmake        prints that of all
#     cmake -DHEADER=FILE -P cmake/source_hashes.cmake   writes both as a header, if one has changed
cmake_minimum_required(VERSION 3.25)
get_filename_component(root ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
set(patterns cmake/fathom.cmake cmake/cuda.cmake)
foreach(folder src apps)
  foreach(name *.cc *.h *.cu *.cuh CMakeLists.txt *.cmake)
    list(APPEND patterns ${folder}/${name})
  endforeach()
endforeach()
list(TRANSFORM patterns PREPEND ${root}/)
file(GLOB_RECURSE sources RELATIVE ${root} ${patterns})
list(FILTER sources EXCLUDE REGEX "_test\\.cc$|/test_|/testing")
list(SORT sources)
set(lines_cpu "")
set(lines_all "")
foreach(source IN LISTS sources)
  file(READ ${root}/${source} text)
  if(source MATCHES "\\.(cc|h|cu|cuh)$")
    string(REGEX REPLACE "//[^\n]*" "" text "${text}")
  else()
    string(REGEX REPLACE "#[^\n]*" "" text "${text}")
  endif()
  string(REGEX REPLACE "[ \t\n]+" " " text "${text}")
  string(SHA256 hash "${text}")
  string(APPEND lines_all "${source} ${hash}\n")
  # Kernels of GPUs also have a hash of their own (tools/cuda_sources.py).
  if(NOT source MATCHES "cuda|hopper|\\.cuh?$")
    string(APPEND lines_cpu "${source} ${hash}\n")
  endif()
endforeach()
foreach(of cpu all)
  string(SHA256 hash_${of} "${lines_${of}}")
  string(SUBSTRING ${hash_${of}} 0 16 hash_${of})
endforeach()
if(DEFINED HEADER)
  file(CONFIGURE OUTPUT ${HEADER} CONTENT "#pragma once
#define FATHOM_CPU_SOURCES \"${hash_cpu}\"
#define FATHOM_ALL_SOURCES \"${hash_all}\"
")
else()
  if(NOT DEFINED OF)
    set(OF cpu)
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo ${hash_${OF}})
endif()
