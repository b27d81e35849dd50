/* SPDX-License-Identifier: Apache-2.0 */
/* attr.h - compiler attributes: printf checking, must-check results, clang's thread-safety analysis. */
#ifndef BASE_ATTR_H
#define BASE_ATTR_H

#define PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define MUST_CHECK __attribute__((warn_unused_result))
#define UNUSED __attribute__((unused))
#define NORETURN __attribute__((noreturn))

#ifdef __clang__
#define TSA(x) __attribute__((x))
#else
#define TSA(x)
#endif
#define CAPABILITY(name) TSA(capability(name))
#define ACQUIRE(...) TSA(acquire_capability(__VA_ARGS__))
#define RELEASE(...) TSA(release_capability(__VA_ARGS__))
#define REQUIRES(...) TSA(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) TSA(locks_excluded(__VA_ARGS__))
#define NO_TSA TSA(no_thread_safety_analysis)

#endif
