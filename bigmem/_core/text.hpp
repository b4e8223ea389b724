#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace bigmem {

// Text in a buffer of the caller's, cut off where that is full. No allocation, no locale and no
// system call: a signal handler may write with it.
class Text {
 public:
  Text(char* begin, std::size_t size) : begin_(begin), at_(begin), end_(begin + size) {}

  Text& operator<<(std::string_view text) {
    const std::size_t fits = text.size() < left() ? text.size() : left();
    std::memcpy(at_, text.data(), fits);
    at_ += fits;
    return *this;
  }

  Text& operator<<(std::uint64_t number) {
    char digits[20];
    std::size_t first = sizeof digits;
    do digits[--first] = static_cast<char>('0' + number % 10);
    while (number /= 10);
    return *this << std::string_view(digits + first, sizeof digits - first);
  }

  Text& hexadecimal(std::uintptr_t number) {
    char digits[2 * sizeof number];
    std::size_t first = sizeof digits;
    do digits[--first] = "0123456789abcdef"[number % 16];
    while (number /= 16);
    return *this << "0x" << std::string_view(digits + first, sizeof digits - first);
  }

  // As the inside of a JSON string, at most so many bytes of it, cut between characters of UTF-8.
  Text& json(std::string_view text, std::size_t most) {
    if (text.size() > most) {
      while (most && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
      text = text.substr(0, most);
    }
    for (const char c : text) {
      if (c == '"' || c == '\\') *this << "\\";
      // No path or name that means anything has control characters in it.
      *this << (static_cast<unsigned char>(c) < 0x20 ? std::string_view(" ")
                                                     : std::string_view(&c, 1));
    }
    return *this;
  }

  std::size_t length() const { return static_cast<std::size_t>(at_ - begin_); }
  std::string_view view() const { return {begin_, length()}; }

 private:
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

  char* const begin_;
  char* at_;
  char* const end_;
};

}  // namespace bigmem
