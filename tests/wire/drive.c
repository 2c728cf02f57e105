// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Drives fuzz_wire.c where libFuzzer is not at hand: drive RUNS CRASH SEED...
 *
 * Each seed as it is, then RUNS inputs made of them: words and bits changed, parts doubled and
 * cut off. The same arguments give the same inputs. What fails is written to the file CRASH.
 * Exit status 3 if an input takes SECONDS of a processor.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define MOST 1026	/* bytes of an input: a message, and two in front of it for fuzz_client.c */
#ifndef SECONDS
#define SECONDS 20
#endif

struct input {
	size_t size;
	uint8_t data[MOST];
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __sanitizer_set_death_callback(void (*callback)(void));
const char *__asan_default_options(void);

static const struct input *tried;
static const char *crash;

/* Found by the sanitizer's runtime, by its name */
const char *__asan_default_options(void)
{
	return "handle_abort=1:detect_leaks=0";
}

static void keep(void)
{
	FILE *file = fopen(crash, "wb");

	if (file && fwrite(tried->data, 1, tried->size, file) == tried->size && !fclose(file))
		fprintf(stderr, "the input is in %s\n", crash);
}

static void hangs(int number)
{
	(void)number;
	keep();
	_exit(3);
}

/* xorshift64*: Marsaglia 2003, Vigna 2014 */
static uint32_t below(uint32_t bound)
{
	static uint64_t state = 8166;

	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (state * 0x2545f4914f6cdd1d >> 32) % bound;
}

static void put(struct input *input, size_t at, uint32_t value)
{
	const uint8_t word[] = { value >> 24, value >> 16, value >> 8, value };

	if (at + sizeof(word) <= input->size)
		memcpy(input->data + at, word, sizeof(word));
}

/* Moves what follows @at by @by bytes; what appears there is what was */
static void insert(struct input *input, size_t at, size_t by)
{
	if (input->size + by > MOST)
		return;
	memmove(input->data + at + by, input->data + at, input->size - at);
	input->size += by;
}

static void change(struct input *input)
{
	static const uint32_t edges[] = { 0, 1, 2, 3, 4, 16, 0x10000001, 0x7fffffff, 0xffffffff };
	size_t word = input->size ? below(input->size) / 4 * 4 : 0;

	switch (below(6)) {
	case 0:
		put(input, word, edges[below(sizeof(edges) / sizeof(*edges))]);
		break;
	case 1:
		put(input, word, below(64));
		break;
	case 2:
		insert(input, word, 4 * (1 + below(6)));
		break;
	case 3:
		input->size = word + below(5) < input->size ? word + below(5) : input->size;
		break;
	default:
		if (input->size)
			input->data[below(input->size)] ^= 1 << below(8);
	}
}

static void try(const struct input *input)
{
	const struct itimerval limit = { .it_value = { .tv_sec = SECONDS } };
	/* of its exact size, for the address sanitizer */
	uint8_t *data = malloc(input->size);

	memcpy(data, input->data, input->size);
	tried = input;
	setitimer(ITIMER_PROF, &limit, NULL);
	LLVMFuzzerTestOneInput(data, input->size);
	free(data);
}

static struct input load(const char *name)
{
	struct input input;
	FILE *file = fopen(name, "rb");

	if (!file) {
		perror(name);
		exit(2);
	}
	input.size = fread(input.data, 1, MOST, file);
	fclose(file);
	return input;
}

int main(int argc, char **argv)
{
	int seeds = argc - 3, i, changes;
	struct input *seed, input;
	long run;

	if (seeds < 1)
		return 2;
	crash = argv[2];
	__sanitizer_set_death_callback(keep);
	signal(SIGPROF, hangs);
	seed = malloc(seeds * sizeof(*seed));
	for (i = 0; i < seeds; i++) {
		seed[i] = load(argv[i + 3]);
		try(&seed[i]);
	}
	for (run = 0; run < atol(argv[1]); run++) {
		input = seed[below(seeds)];
		for (changes = 1 + below(4); changes; changes--)
			change(&input);
		try(&input);
	}
	free(seed);
	return 0;
}
