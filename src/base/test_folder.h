// For tests.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "base/check.h"

namespace fathom {

// A new folder, removed at the end.
class TestFolder {
 public:
  TestFolder() {
    path_ = (std::filesystem::temp_directory_path() / "fathom-test-XXXXXX").string();
    CHECK(mkdtemp(path_.data()) != nullptr, "no temporary folder {}", path_);
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  // `file` may have folders in it, which are made.
  void Write(const std::string& file, std::string_view content) const {
    const std::filesystem::path path = std::filesystem::path(path_) / file;
    std::filesystem::create_directories(path.parent_path());
    std::filesystem::remove(path);  // some file systems flush a file that is cut to nothing
    std::ofstream out(path, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    CHECK(out.good(), "cannot write {}", path.string());
  }

 private:
  std::string path_;
};

}  // namespace fathom
