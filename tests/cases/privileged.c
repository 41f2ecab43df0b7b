/* Does what only ring 0 may. */
int puts(const char *);

int main(void) {
    unsigned long tables;
    unsigned char port;
    puts("in ring 0?");
    __asm__ volatile("cli\n\tmov %%cr3, %0" : "=r"(tables));
    __asm__ volatile("inb $0x80, %0" : "=a"(port));
    return tables != 0 ? 5 : 6;
}
