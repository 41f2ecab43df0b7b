/* Calls the controller through the executor's dispatch function, and says what came back. */

struct result {
	union {
		char *pointer;
		char bytes[8];
	} data;
	unsigned long size;
};

struct result __llvm_orc_SimpleRemoteEPC_dispatch_fn(void *context, const void *tag, const char *args, unsigned long size);
extern char __llvm_orc_SimpleRemoteEPC_dispatch_ctx;
void *malloc(unsigned long);
void free(void *);
void *memcpy(void *, const void *, unsigned long);
unsigned long strlen(const char *);

/* What of static memory the calls in flight must not disturb. */
static int depth;

static struct result made_of(const char *head, const char *bytes, unsigned long size)
{
	struct result made = {.size = size + 16};
	made.data.pointer = malloc(size + 16);
	memcpy(made.data.pointer, head, 8);
	memcpy(made.data.pointer + 8, &size, 8);
	/* Touched one by one: it is this code that read them. */
	for (unsigned long i = 0; i < size; i++)
		made.data.pointer[16 + i] = bytes[i] + 1;
	return made;
}

/* A wrapper function: the first 8 bytes of its arguments are the tag to call, the rest is for the handler. Returns how it
   was answered ("inline.", "memory.", "no answ"), how deep it is as the
   eighth byte, the size of the answer, and each byte of it plus one. */
struct result relay(const char *args, unsigned long size)
{
	void *tag;
	char head[8];
	memcpy(&tag, args, 8);
	int own = ++depth;
	struct result got = __llvm_orc_SimpleRemoteEPC_dispatch_fn(
		&__llvm_orc_SimpleRemoteEPC_dispatch_ctx, tag, args + 8, size - 8);
	depth--;
	struct result made;
	if (got.size == 0 && got.data.pointer) {
		memcpy(head, "no answ", 7);
		head[7] = own;
		made = made_of(head, got.data.pointer, strlen(got.data.pointer));
		free(got.data.pointer);
	} else if (got.size <= 8) {
		memcpy(head, "inline.", 7);
		head[7] = own;
		made = made_of(head, got.data.bytes, got.size);
	} else {
		memcpy(head, "memory.", 7);
		head[7] = own;
		made = made_of(head, got.data.pointer, got.size);
		free(got.data.pointer);
	}
	return made;
}
