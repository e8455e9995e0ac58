#include "gpu_figures.h"

#include <boost/json.hpp>
#include <utility>

#include "gpu_types.h"

namespace fathom {
namespace {

namespace json = boost::json;

// Far beyond any figure, and what is computed of such ones is still a number.
constexpr double kMost = 1e18;

// {"value": positive, "command": what measured it}.
Result<double> Figure(const json::object& figures, std::string_view name) {
  const json::value* entry = figures.if_contains(name);
  const json::object* figure = entry == nullptr ? nullptr : entry->if_object();
  const json::value* value = figure == nullptr ? nullptr : figure->if_contains("value");
  const json::value* command = figure == nullptr ? nullptr : figure->if_contains("command");
  const double number = value != nullptr && value->is_number() ? value->to_number<double>() : 0;
  if (!(number >= 1 / kMost && number <= kMost)) {
    return InvalidArgument("figures: {} needs a \"value\" from {:g} to {:g}", name, 1 / kMost,
                           kMost);
  }
  if (command == nullptr || !command->is_string()) {
    return InvalidArgument("figures: {} needs the \"command\" that measured it", name);
  }
  return number;
}

}  // namespace

Result<GpuFigures> ParseGpuFigures(std::string_view text) {
  boost::system::error_code error;
  const json::value parsed = json::parse(text, error);
  const json::object* all = error ? nullptr : parsed.if_object();
  if (all == nullptr) return InvalidArgument("not a JSON object");
  const json::value *name = all->if_contains("name"), *hopper = all->if_contains("hopper");
  const json::value* entry = all->if_contains("figures");
  if (name == nullptr || !name->is_string()) return InvalidArgument("\"name\" is missing");
  if (hopper == nullptr || !hopper->is_bool()) return InvalidArgument("\"hopper\" is missing");
  if (entry == nullptr || !entry->is_object()) return InvalidArgument("\"figures\" is missing");
  GpuFigures gpu{.name = std::string(name->get_string()), .hopper = hopper->get_bool()};
  const std::pair<const char*, double*> fields[] = {
      {"memory_bytes", &gpu.memory_bytes},
      {"read_bytes_per_s", &gpu.read_bytes_per_s},
      {"bf16_operations_per_s", &gpu.bf16_operations_per_s},
      {"fp8_operations_per_s", &gpu.fp8_operations_per_s},
      {"peer_bytes_per_s", &gpu.peer_bytes_per_s},
      {"launch_s", &gpu.launch_s},
      {"small_all_reduce_s", &gpu.small_all_reduce_s},
      {"small_all_reduce_s_per_peer", &gpu.small_all_reduce_s_per_peer},
      {"small_all_reduce_s_per_byte", &gpu.small_all_reduce_s_per_byte},
      {"barrier_s", &gpu.barrier_s},
      {"product_read_share", &gpu.product_read_share},
      {"expert_read_share", &gpu.expert_read_share},
      {"cache_read_share", &gpu.cache_read_share},
      {"bf16_product_share", &gpu.bf16_product_share},
      {"fp8_product_share", &gpu.fp8_product_share},
      {"expert_product_share", &gpu.expert_product_share},
      {"absorbed_share", &gpu.absorbed_share},
      {"expanded_share", &gpu.expanded_share},
      {"logit_reads", &gpu.logit_reads}};
  for (const auto& [key, field] : fields) *field = TRY(Figure(entry->get_object(), key));
  return gpu;
}

Result<GpuFigures> GpuType(std::string_view type) {
  if (type == "h200") return ParseGpuFigures(kH200Figures);
  return InvalidArgument("no GPU type {}: there is {}", type, kGpuTypes);
}

}  // namespace fathom
