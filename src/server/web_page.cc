#include "server/web_page.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"

namespace fathom {
namespace {

const std::string_view kPage = kWebPage;

std::string Sha256Base64(std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  CHECK(EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr) == 1,
        "OpenSSL has SHA-256");
  unsigned char encoded[2 * EVP_MAX_MD_SIZE];
  const int length = EVP_EncodeBlock(encoded, digest, static_cast<int>(size));
  return {reinterpret_cast<const char*>(encoded), static_cast<size_t>(length)};
}

// What is in the first element `name`: what the policy's hashes are of.
std::string_view Element(std::string_view name) {
  const std::string begin = fmt::format("<{}>", name), end = fmt::format("</{}>", name);
  const size_t at = kPage.find(begin);
  CHECK(at != kPage.npos, "the page has no {}", begin);
  const size_t from = at + begin.size(), to = kPage.find(end, from);
  CHECK(to != kPage.npos, "the page has no {}", end);
  return kPage.substr(from, to - from);
}

// Images are those in the page; the library that cleans HTML is the only one that may make any.
std::string Policy() {
  return fmt::format(
      "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; "
      "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
      "require-trusted-types-for 'script'; trusted-types dompurify",
      Sha256Base64(Element("script")), Sha256Base64(Element("style")));
}

// Whether If-None-Match names `tag`; weak ones are as good (RFC 9110, 13.1.2).
bool Names(std::string_view wanted, std::string_view tag) {
  return wanted == "*" || wanted.find(tag) != wanted.npos;
}

}  // namespace

HttpResponse WebPage(const HttpRequest& request) {
  static const std::string policy = Policy();
  static const std::string tag = fmt::format("\"{}\"", Sha256Base64(kPage));
  static const auto page = std::make_shared<const std::string>(kPage);
  return {.status = Names(request.known_tags, tag) ? 304 : 200,
          .shared = page,
          .content_type = "text/html; charset=utf-8",
          .headers = {{"Content-Security-Policy", policy},
                      {"ETag", tag},
                      {"Cache-Control", "no-cache"},  // it is asked for again, and is rarely sent
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"}}};
}

}  // namespace fathom
