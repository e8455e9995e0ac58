# The page to talk to the model on: webui/ and three libraries of Debian's in one file, WEB_PAGE.
# Those of the distribution are taken as they are installed, none is copied into this tree.
set(WEB_SCRIPTS elements.js store.js markdown.js stream.js tokens.js messages.js settings.js
    talks.js app.js)
set(WEB_LANGUAGES bash cmake cpp cs css diff dockerfile go haskell ini java javascript json julia
    kotlin lua makefile markdown perl php powershell python r ruby rust scala sql swift tex
    typescript xml yaml)

function(read_library variable package file)
  if(NOT EXISTS /usr/share/${file})
    message(FATAL_ERROR "/usr/share/${file} is not there: tools/install_deps.sh installs "
                        "${package}")
  endif()
  file(READ /usr/share/${file} text)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS /usr/share/${file})
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()

read_library(script libjs-marked javascript/marked/marked.min.js)
read_library(text node-dompurify nodejs/dompurify/dist/purify.min.js)
# Debian's 2.4.1-2+deb12u1 has a check of a backport in one place too many, which asks a variable
# that is not there, so that cleaning always fails. With it the check finds nothing; a version
# without the fault does not see it.
string(APPEND script "\n((shadowNode) => {\n${text}\n})({__depth: 0});\n")
read_library(text node-highlight.js nodejs/highlight.js/lib/highlight.js)
# A module of Node's: in a page it makes window.hljs.
string(APPEND script "(() => { const module = {};\n${text}\n})();\n")
foreach(language IN LISTS WEB_LANGUAGES)
  read_library(text node-highlight.js nodejs/highlight.js/lib/languages/${language}.js)
  string(APPEND script "hljs.registerLanguage('${language}', (() => { const module = {};\n${text}\n"
                       "return module.exports; })());\n")
endforeach()

string(APPEND script "(() => {\n'use strict';\n")
foreach(file IN LISTS WEB_SCRIPTS)
  file(READ webui/${file} text)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS webui/${file})
  string(APPEND script "${text}")
endforeach()
string(APPEND script "})();\n")
# These end a script, or keep its end from being seen. In strings and patterns the escape means the
# same.
string(REPLACE "</script" "<\\/script" script "${script}")
string(REPLACE "<!--" "<\\!--" script "${script}")

file(READ webui/style.css WEB_STYLE)
file(READ webui/index.html WEB_PAGE)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS webui/style.css webui/index.html)
string(REPLACE "/* style.css */" "${WEB_STYLE}" WEB_PAGE "${WEB_PAGE}")
string(REPLACE "/* scripts */" "${script}" WEB_PAGE "${WEB_PAGE}")
string(LENGTH "${WEB_PAGE}" bytes)
message(STATUS "Web page: ${bytes} bytes")
configure_file(web_page_text.cc.in ${CMAKE_CURRENT_BINARY_DIR}/web_page_text.cc @ONLY)
