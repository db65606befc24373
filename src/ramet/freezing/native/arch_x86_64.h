/* Everything that is true of x86-64 only: registers, the instruction bytes of lists, and the frame
 * that rt_sigreturn reads. A port to another processor adds a file like this one. */
#ifndef RAMET_ARCH_H
#define RAMET_ARCH_H
#include <stdint.h>
#include <string.h>
#include <sys/user.h>
#include <ucontext.h>

typedef struct user_regs_struct registers;

/* The instruction that enters the kernel; find_syscall looks for one in the vdso. */
static const unsigned char arch_syscall_bytes[2] = {0x0f, 0x05};
enum { ARCH_SYSCALL_LENGTH = 2 };
/* AUDIT_ARCH_X86_64: the kernel's name for this way in, and for its table of calls. */
#define ARCH_AUDIT 0xc000003eu

/* The 6th argument that marks a clone in a list: the task that sees 0 as its result is the new
 * thread, and takes the bounds of its own list from its stack. */
#define ARCH_THREAD_MARK 0x72616d65745f746cul

/* The loop that runs a list. rbx: first record, r12: one past the last. A record is
 *     number, six arguments, flags            (eight 64-bit words; the result replaces the number)
 * A record with flag 1 that fails ends the loop: int3 with rbx at that record. A complete run ends
 * with rbx == r12.
 *
 *  00 1: cmp  %r12,%rbx
 *  03    jae  3f
 *  05    mov  (%rbx),%rax ... 48(%rbx),%r9
 *  20    syscall
 *  22    test %rax,%rax
 *  25    jne  2f
 *  27    movabs $MARK,%rcx
 *  31    cmp  %rcx,%r9
 *  34    jne  2f
 *  36    pop  %rbx
 *  37    pop  %r12
 *  39    jmp  1b
 *  3b 2: mov  %rax,(%rbx)
 *  3e    testb $1,56(%rbx)
 *  42    je   4f
 *  44    cmp  $-4095,%rax
 *  4a    jae  3f
 *  4c 4: add  $64,%rbx
 *  50    jmp  1b
 *  52 3: int3
 */
static const unsigned char arch_loop[] = {
    0x4c, 0x39, 0xe3, 0x73, 0x4d,                                           /* 00 */
    0x48, 0x8b, 0x03, 0x48, 0x8b, 0x7b, 0x08, 0x48, 0x8b, 0x73, 0x10,       /* 05 */
    0x48, 0x8b, 0x53, 0x18, 0x4c, 0x8b, 0x53, 0x20, 0x4c, 0x8b, 0x43, 0x28, /* 10 */
    0x4c, 0x8b, 0x4b, 0x30,                                                 /* 1c */
    0x0f, 0x05,                                                             /* 20 */
    0x48, 0x85, 0xc0, 0x75, 0x14,                                           /* 22 */
    0x48, 0xb9, 0x6c, 0x74, 0x5f, 0x74, 0x65, 0x6d, 0x61, 0x72,             /* 27 */
    0x49, 0x39, 0xc9, 0x75, 0x05,                                           /* 31 */
    0x5b, 0x41, 0x5c, 0xeb, 0xc5,                                           /* 36 */
    0x48, 0x89, 0x03, 0xf6, 0x43, 0x38, 0x01, 0x74, 0x08,                   /* 3b */
    0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, 0x06,                         /* 44 */
    0x48, 0x83, 0xc3, 0x40, 0xeb, 0xae,                                     /* 4c */
    0xcc,                                                                   /* 52 */
};

static inline void arch_set_call(registers *r, uint64_t instruction, long number,
                                 const uint64_t *arguments) {
    r->rip = instruction;
    r->rax = (uint64_t)number;
    r->orig_rax = (uint64_t)-1;
    r->rdi = arguments[0];
    r->rsi = arguments[1];
    r->rdx = arguments[2];
    r->r10 = arguments[3];
    r->r8 = arguments[4];
    r->r9 = arguments[5];
}
/* At the entry stop of a call we set: is it still exactly that call? */
static inline int arch_is_call(const registers *r, uint64_t instruction, long number,
                               const uint64_t *arguments) {
    return r->rip == instruction + ARCH_SYSCALL_LENGTH && (long)r->orig_rax == number &&
           r->rdi == arguments[0] && r->rsi == arguments[1] && r->rdx == arguments[2] &&
           r->r10 == arguments[3] && r->r8 == arguments[4] && r->r9 == arguments[5];
}
static inline void arch_set_list(registers *r, uint64_t loop, uint64_t first, uint64_t end,
                                 uint64_t stack) {
    r->rip = loop;
    r->rbx = first;
    r->r12 = end;
    r->rsp = stack;
    r->orig_rax = (uint64_t)-1;
}
static inline uint64_t arch_list_position(const registers *r) { return r->rbx; }
static inline long arch_result(const registers *r) { return (long)r->rax; }
static inline long arch_current_call(const registers *r) { return (long)r->orig_rax; }
static inline uint64_t arch_first_argument(const registers *r) { return r->rdi; }
static inline uint64_t arch_thread_pointer(const registers *r) { return r->fs_base; }

/* For a copy of a thread that was stopped inside a call: it makes the call again where the kernel
 * would restart it, and else sees EINTR, as after any signal. */
static inline void arch_restart_call(registers *r) {
    if ((long)r->orig_rax >= 0) {
        /* ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK */
        long result = (long)r->rax;
        if (result == -512 || result == -513 || result == -514 || result == -516) {
            r->rip -= ARCH_SYSCALL_LENGTH;
            r->rax = r->orig_rax;
        }
    }
    r->orig_rax = (uint64_t)-1;
}

/* The same for the thread itself when it goes on. The kernel remembers how long a timed call still
 * has to wait, and restart_syscall asks it to wait for the rest. */
enum { ARCH_RESTART_SYSCALL = 219 };
static inline int arch_in_timed_call(const registers *r) {
    return (long)r->orig_rax >= 0 && (long)r->rax == -516;
}
static inline void arch_go_on(registers *r) {
    int timed = arch_in_timed_call(r);
    arch_restart_call(r);
    if (timed) r->rax = ARCH_RESTART_SYSCALL;
}
/* Stopped again in the same call, a thread that went on like that shows the number of
 * restart_syscall, and no longer that of its call. */
static inline int arch_goes_on_in_call(const registers *r) {
    return arch_in_timed_call(r) && r->orig_rax == ARCH_RESTART_SYSCALL;
}
static inline void arch_set_current_call(registers *r, long number) {
    r->orig_rax = (uint64_t)number;
}
static inline void arch_interrupt_call(registers *r) {
    r->rax = (uint64_t)-4; /* EINTR */
    r->orig_rax = (uint64_t)-1;
}

static inline uint64_t arch_instruction(const registers *r) { return r->rip; }
static inline void arch_set_instruction(registers *r, uint64_t at) {
    r->rip = at;
    r->orig_rax = (uint64_t)-1;
}
static inline uint64_t arch_stack(const registers *r) { return r->rsp; }

/* A signal frame holds the extended state as ptrace gives it, but for the 48 bytes that software
 * may use and a closing magic number (arch/x86/include/uapi/asm/sigcontext.h). `size` and
 * `features` are what this kernel puts into its own frames. */
enum { ARCH_SOFTWARE_BYTES = 464, ARCH_XSTATE_BV = 512 };
#define ARCH_XSTATE_MAGIC1 0x46505853u
#define ARCH_XSTATE_MAGIC2 0x46505845u

/* Names a set of registers that a thread uses and this kernel does not keep, or NULL. PKRU is none:
 * images have no memory with protection keys, and without those its value says nothing. */
enum { ARCH_PKRU = 9, ARCH_TILE_CONFIG = 17, ARCH_TILES = 18 };
static inline const char *arch_missing_state(uint64_t present, uint64_t features) {
    uint64_t missing = present & ~features & ~(1ul << ARCH_PKRU);
    if (!missing) return NULL;
    if (missing & (1ul << ARCH_TILE_CONFIG | 1ul << ARCH_TILES)) return "AMX tiles";
    return missing & 0xe0 ? "AVX-512 registers" : missing & 4 ? "AVX registers" : "registers";
}

static inline void arch_fill_extended(unsigned char *frame, const unsigned char *state,
                                      uint32_t size, uint64_t features) {
    memcpy(frame, state, size);
    uint64_t present;
    memcpy(&present, frame + ARCH_XSTATE_BV, sizeof present);
    present &= features;
    memcpy(frame + ARCH_XSTATE_BV, &present, sizeof present);
    uint32_t words[] = {ARCH_XSTATE_MAGIC1, size + 4, (uint32_t)features,
                        (uint32_t)(features >> 32), size};
    uint32_t closing = ARCH_XSTATE_MAGIC2;
    memset(frame + ARCH_SOFTWARE_BYTES, 0, 48);
    memcpy(frame + ARCH_SOFTWARE_BYTES, words, sizeof words);
    memcpy(frame + size, &closing, sizeof closing);
}

static inline void arch_fill_context(ucontext_t *context, const registers *r,
                                     uint64_t extended_at) {
    long long *g = context->uc_mcontext.gregs;
    /* UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS: there is extended state, and ss is to
     * be restored exactly. */
    context->uc_flags = 1 | 2 | 4;
    g[REG_R8] = r->r8;
    g[REG_R9] = r->r9;
    g[REG_R10] = r->r10;
    g[REG_R11] = r->r11;
    g[REG_R12] = r->r12;
    g[REG_R13] = r->r13;
    g[REG_R14] = r->r14;
    g[REG_R15] = r->r15;
    g[REG_RDI] = r->rdi;
    g[REG_RSI] = r->rsi;
    g[REG_RBP] = r->rbp;
    g[REG_RBX] = r->rbx;
    g[REG_RDX] = r->rdx;
    g[REG_RAX] = r->rax;
    g[REG_RCX] = r->rcx;
    g[REG_RSP] = r->rsp;
    g[REG_RIP] = r->rip;
    g[REG_EFL] = r->eflags;
    g[REG_CSGSFS] = (long long)((r->cs & 0xffff) | ((uint64_t)r->ss << 48));
    context->uc_mcontext.fpregs = (fpregset_t)extended_at;
}
#endif
