#include "server/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <utility>

#include "base/log.h"
#include "base/printable.h"

namespace fathom {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

constexpr off_t kMaxFileBytes = off_t{1} << 20;
constexpr unsigned char kSessions[] = "fathom";  // whose sessions may be resumed

Status Refuse(const char* flag, const std::string& path, const std::string& why) {
  return InvalidArgument("{} {}: {}", flag, Printable(path, 256), why);
}

Status CheckFile(const char* flag, const std::string& path) {
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) return Refuse(flag, path, "there is no such file");
  if (!S_ISREG(about.st_mode)) return Refuse(flag, path, "it is no plain file");
  if (about.st_size > kMaxFileBytes) return Refuse(flag, path, "it is larger than 1 MiB");
  return {};
}

// It is served with all the same: a clock may be wrong, and clients say no themselves.
void WarnOfDates(const std::string& path, Tls::Context& context) {
  const X509* certificate = SSL_CTX_get0_certificate(context.native_handle());
  const char* fault = X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0 ? "has expired"
                      : X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0
                          ? "is not valid yet"
                          : nullptr;
  if (fault == nullptr) return;
  LOG_WARNING("--ssl-certfile {}: the certificate {}, and clients will refuse it",
              Printable(path, 256), fault);
}

Status AskForCertificates(const std::string& path, Tls::Context& context) {
  constexpr char kFlag[] = "--ssl-ca-certs";
  TRY(CheckFile(kFlag, path));
  error_code error;
  context.load_verify_file(path, error);
  if (error) return Refuse(kFlag, path, error.message());
  STACK_OF(X509_NAME)* names = SSL_load_client_CA_file(path.c_str());
  if (names == nullptr) return Refuse(kFlag, path, "there is no certificate in it");
  SSL_CTX_set_client_CA_list(context.native_handle(), names);  // which owns them now
  context.set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, error);
  if (error) return Refuse(kFlag, path, error.message());
  return {};
}

Result<std::shared_ptr<Tls::Context>> MakeContext(const TlsFiles& files) {
  auto context = std::make_shared<Tls::Context>(ssl::context::tls_server);
  SSL_CTX* native = context->native_handle();
  if (SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION) != 1 ||
      SSL_CTX_set_session_id_context(native, kSessions, sizeof kSessions - 1) != 1) {
    return Internal("OpenSSL cannot be set up for TLS 1.2 and later");
  }
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);  // of idle connections
  error_code error;
  // Or OpenSSL would ask whoever sits at the terminal.
  context->set_password_callback([](size_t, ssl::context::password_purpose) { return ""; }, error);
  constexpr char kCertificate[] = "--ssl-certfile", kKey[] = "--ssl-keyfile";
  TRY(CheckFile(kCertificate, files.certificate));
  TRY(CheckFile(kKey, files.key));
  context->use_certificate_chain_file(files.certificate, error);
  if (error) {
    return Refuse(kCertificate, files.certificate,
                  "it must be a certificate, in PEM (" + error.message() + ")");
  }
  context->use_private_key_file(files.key, ssl::context::pem, error);
  if (error) {
    return Refuse(
        kKey, files.key,
        "it must be the certificate's, in PEM, without a password (" + error.message() + ")");
  }
  // A key of another kind than the certificate's has a place of its own in the context.
  if (SSL_CTX_check_private_key(native) != 1) {
    ERR_clear_error();
    return Refuse(kKey, files.key, "it is not the key of " + Printable(files.certificate, 256));
  }
  if (!files.client_ca.empty()) TRY(AskForCertificates(files.client_ca, *context));
  return context;
}

}  // namespace

Result<std::unique_ptr<Tls>> Tls::Read(TlsFiles files) {
  std::unique_ptr<Tls> tls(new Tls(std::move(files)));
  TRY(tls->Reread());
  return tls;
}

Status Tls::Reread() {
  std::shared_ptr<Context> context = TRY(MakeContext(files_));
  WarnOfDates(files_.certificate, *context);
  std::lock_guard lock(mutex_);
  context_ = std::move(context);
  return {};
}

std::shared_ptr<Tls::Context> Tls::context() const {
  std::lock_guard lock(mutex_);
  return context_;
}

}  // namespace fathom
