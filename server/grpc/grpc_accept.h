/* grpc_accept.h - takes connections for gRPC, so many at a time, and hands them to its servers.
 *
 * gRPC's own listener has no bound: every connection costs memory and a descriptor before its
 * client has shown a key.  So connections are taken here, and handed to it.  It does not tell when
 * one ends; but it closes the descriptor then, which is another socket, or none, from then on. */
#ifndef KK_GRPC_ACCEPT_H
#define KK_GRPC_ACCEPT_H

#include <grpcpp/server_builder.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace kakeya_grpc {

class Acceptor {
  public:
    using Target = grpc::experimental::ExternalConnectionAcceptor;

    /* The socket is closed with it.  The target is borrowed. */
    Acceptor(int listening, int most, Target *target)
        : listening_(listening), most_(static_cast<size_t>(most)), target_(target) {
        open_.reserve(most_);
        ending_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (ending_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
        try {
            thread_ = std::thread([this] { run(); });
        } catch (...) {
            close(ending_);
            throw;
        }
    }
    ~Acceptor() {
        (void)!eventfd_write(ending_, 1);
        thread_.join();
        close(ending_);
        close(listening_);
    }
    Acceptor(const Acceptor &) = delete;
    Acceptor &operator=(const Acceptor &) = delete;

    /* Connections go to this one from now on.  The one before keeps those that it has. */
    void aim(Target *target) {
        const std::lock_guard<std::mutex> hold(lock_);
        target_ = target;
    }
    /* Whether it still has connections. */
    bool serves(const Target *target) {
        const std::lock_guard<std::mutex> hold(lock_);
        return std::any_of(open_.begin(), open_.end(), [target](const Connection &c) {
            return c.target == target && !ended(c);
        });
    }

  private:
    struct Connection {
        int fd;
        ino_t inode;
        const Target *target;
    };

    static bool inode_of(int fd, ino_t *inode) {
        struct stat st;
        if (fstat(fd, &st) != 0 || !S_ISSOCK(st.st_mode)) return false;
        *inode = st.st_ino;
        return true;
    }

    static bool ended(const Connection &c) {
        ino_t inode;
        return !inode_of(c.fd, &inode) || inode != c.inode;
    }

    bool has_place() {
        if (open_.size() < most_) return true;
        open_.erase(std::remove_if(open_.begin(), open_.end(), ended), open_.end());
        return open_.size() < most_;
    }

    void take(int fd) {
        const std::lock_guard<std::mutex> hold(lock_);
        Connection c = {fd, 0, target_};
        if (!has_place() || !inode_of(fd, &c.inode)) {
            close(fd);
            return;
        }
        open_.push_back(c);
        Target::NewConnectionParameters p;
        p.listener_fd = listening_;
        p.fd = fd;
        target_->HandleNewConnection(&p);
    }

    void run() {
        pollfd on[2] = {{listening_, POLLIN, 0}, {ending_, POLLIN, 0}};
        int wait_ms = -1;
        for (;;) {
            if (poll(wait_ms < 0 ? on : on + 1, wait_ms < 0 ? 2 : 1, wait_ms) < 0) continue;
            if (on[1].revents) return;
            const int fd = accept4(listening_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
            /* Without a descriptor the client waits, and so do we. */
            const bool starved = fd < 0 && (errno == EMFILE || errno == ENFILE ||
                                            errno == ENOBUFS || errno == ENOMEM);
            wait_ms = starved ? 50 : -1;
            if (fd >= 0) take(fd);
        }
    }

    int listening_, ending_ = -1;
    size_t most_;
    std::mutex lock_; /* of the next two */
    Target *target_;
    std::vector<Connection> open_;
    std::thread thread_;
};

} // namespace kakeya_grpc

#endif
