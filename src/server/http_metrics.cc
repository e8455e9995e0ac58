#include "server/http_metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <vector>

#include "server/exposition.h"
#include "server/process_metrics.h"

namespace fathom {

namespace {

const prometheus::Histogram::BucketBoundaries kSecondsBuckets = {
    0.001, 0.005, 0.01, 0.05, 0.1,   0.25,  0.5,    1.0,   2.5,
    5.0,   10.0,  30.0, 60.0, 120.0, 480.0, 1920.0, 7680.0};

}  // namespace

struct HttpMetrics::Families {
  prometheus::Family<prometheus::Counter>& Counters(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }

  prometheus::Registry registry;
  prometheus::Family<prometheus::Histogram>& seconds =
      prometheus::BuildHistogram()
          .Name("http_request_duration_seconds")
          .Help("From an HTTP request's first byte to its answer's last.")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& requests =
      Counters("http_requests_total", "HTTP requests answered.");
  prometheus::Family<prometheus::Counter>& answers =
      Counters("fathom:http_answers_total",
               "The same by exact status, which tells refusals (429, 503) from errors.");
  prometheus::Family<prometheus::Counter>& refused =
      Counters("fathom:connections_refused_total",
               "Connections for which there was no room: too many of a client, or of the server.");
  prometheus::Counter& failed_handshakes =
      Counters("fathom:tls_handshakes_failed_total",
               "Clients that sent something, and with whom TLS could not be agreed on.")
          .Add({});
  prometheus::Gauge& request_memory =
      prometheus::BuildGauge()
          .Name("fathom:request_memory_bytes")
          .Help("What requests and their answers hold of --max-request-memory-bytes.")
          .Register(registry)
          .Add({});
  prometheus::Family<prometheus::Counter>& of_key =
      Counters("fathom:key_requests_total", "HTTP requests answered, by key.");
  prometheus::Family<prometheus::Counter>& tokens_of_key =
      Counters("fathom:key_tokens_total", "Tokens of prompts and answers, by key.");
  ProcessMetrics process{registry};
};

HttpMetrics::HttpMetrics() : families_(std::make_unique<Families>()) {
  // Every reason is there from the start, so that rates have a zero to begin from.
  for (const char* reason : {"client", "server"}) families_->refused.Add({{"reason", reason}});
}

HttpMetrics::~HttpMetrics() = default;

void HttpMetrics::OnHttp(std::string_view method, std::string_view handler, int status,
                         double seconds) {
  families_->seconds
      .Add({{"method", std::string(method)}, {"handler", std::string(handler)}}, kSecondsBuckets)
      .Observe(seconds);
  families_->requests
      .Add({{"method", std::string(method)},
            {"handler", std::string(handler)},
            {"status", fmt::format("{}xx", status / 100)}})  // as vLLM's
      .Increment();
  families_->answers.Add({{"handler", std::string(handler)}, {"status", std::to_string(status)}})
      .Increment();
}

void HttpMetrics::OnRefusedConnection(const char* reason) {
  families_->refused.Add({{"reason", reason}}).Increment();
}

void HttpMetrics::OnFailedHandshake() {
  families_->failed_handshakes.Increment();
}

void HttpMetrics::SetRequestMemory(size_t bytes) {
  families_->request_memory.Set(static_cast<double>(bytes));
}

void HttpMetrics::OnKey(const std::string& name, int status, const Usage& usage) {
  families_->of_key.Add({{"key", name}, {"status", std::to_string(status)}}).Increment();
  const auto count = [&](const char* kind, int64_t tokens) {
    families_->tokens_of_key.Add({{"key", name}, {"kind", kind}})
        .Increment(static_cast<double>(tokens));
  };
  count("prompt", usage.prompt_tokens);
  count("generation", usage.completion_tokens);
}

std::string HttpMetrics::Render() {
  families_->process.Update();
  return Exposition(families_->registry);
}

}  // namespace fathom
