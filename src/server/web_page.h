// The page to talk to the model on: one file, made of webui/ when building (web_page.cmake).
#pragma once

#include "server/http.h"

namespace fathom {

extern const char kWebPage[];

// Runs no script but its own, and asks nobody but this server: what a model writes, and what is
// left of it when the page makes HTML of it, can do neither.
HttpResponse WebPage(const HttpRequest& request);

}  // namespace fathom
